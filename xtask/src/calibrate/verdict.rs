//! Comparison of counts with known work.

use std::fmt;

/// Minimum share of time on counters; below it, a count is an estimate.
const SHARE_MIN: f64 = 0.99;
/// Relative tolerance of FLOPs, because the start of the program differs slightly between runs.
const FLOPS_TOLERANCE: f64 = 0.02;
/// Lower tolerance of bytes, because of hits in caches.
const BYTES_BELOW: f64 = 0.05;
/// Upper tolerance of bytes, because of traffic of other processes.
const BYTES_ABOVE: f64 = 0.25;

/// The known work: a range of counts with tolerances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    least: f64,
    most: f64,
    fewer: f64,
    more: f64,
}

impl Known {
    pub fn flops(number: f64) -> Self {
        Self {
            least: number,
            most: number,
            fewer: FLOPS_TOLERANCE,
            more: FLOPS_TOLERANCE,
        }
    }

    /// The true value lies between the two.
    pub fn bytes(least: f64, most: f64) -> Self {
        Self {
            least,
            most,
            fewer: BYTES_BELOW,
            more: BYTES_ABOVE,
        }
    }

    fn accepts(&self, counted: f64) -> bool {
        let fewest = self.least * (1.0 - self.fewer);
        let most = self.most * (1.0 + self.more);
        (fewest..=most).contains(&counted)
    }

    /// Ratio to the known work, to both ends of a range.
    pub fn ratio(&self, counted: f64) -> String {
        let of_least = format!("{:.3}", counted / self.least);
        if self.least < self.most {
            format!("{:.3} … {of_least}", counted / self.most)
        } else {
            of_least
        }
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least < self.most {
            write!(f, "{} … ", giga(self.least))?;
        }
        f.write_str(&giga(self.most))
    }
}

/// Formats a number in units of 10⁹.
pub fn giga(number: f64) -> String {
    format!("{:.3} G", number / 1e9)
}

/// The count of a run, or the difference of two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    pub total: f64,
    /// Share of time during which all events were on counters.
    pub share: f64,
}

impl Counted {
    /// The difference to a shorter run, which excludes the start of the program.
    pub fn since(self, shorter: Self) -> Self {
        Self {
            total: self.total - shorter.total,
            share: self.share.min(shorter.share),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Ok,
    Wrong,
    /// Multiplexed, or counted on another kind of core.
    Estimated,
    NotCounted,
}

impl Verdict {
    pub fn of(known: &Known, counted: Option<Counted>) -> Self {
        match counted {
            None => Self::NotCounted,
            // NaN means no share.
            Some(counted) if counted.share.is_nan() || counted.share < SHARE_MIN => Self::Estimated,
            Some(counted) if known.accepts(counted.total) => Self::Ok,
            Some(_) => Self::Wrong,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Wrong => "WRONG",
            Self::Estimated => "no verdict: multiplexed",
            Self::NotCounted => "not counted here",
        })
    }
}

/// Summary of all verdicts in one line.
pub fn conclude(verdicts: &[Verdict]) -> Result<String, String> {
    let count = |which| verdicts.iter().filter(|verdict| **verdict == which).count();
    let (ok, wrong) = (count(Verdict::Ok), count(Verdict::Wrong));
    let compared = ok + wrong;
    let rest = verdicts.len() - compared;
    match (compared, wrong) {
        (0, _) => Err("nothing was compared".to_owned()),
        (_, 0) => Ok(format!("{ok} ok, {rest} not compared")),
        _ => Err(format!(
            "{wrong} of {compared} WRONG: wrong codes or formulas in the CPU's event table, or the machine was not idle"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(known: Known, total: f64) -> Verdict {
        Verdict::of(&known, Some(Counted { total, share: 1.0 }))
    }

    #[test]
    fn flops_have_a_tolerance_of_two_percent() {
        let known = Known::flops(1000.0);
        for right in [980.0, 1000.0, 1020.0] {
            assert_eq!(verdict(known, right), Verdict::Ok, "{right}");
        }
        // Fused operations counted once, vectors counted as scalars, another precision.
        for wrong in [0.0, 500.0, 979.0, 1021.0, 2000.0, -1000.0, f64::NAN] {
            assert_eq!(verdict(known, wrong), Verdict::Wrong, "{wrong}");
        }
    }

    #[test]
    fn bytes_lie_between_those_without_and_with_allocate() {
        let known = Known::bytes(2400.0, 3200.0);
        for right in [2280.0, 2400.0, 3200.0, 4000.0] {
            assert_eq!(verdict(known, right), Verdict::Ok, "{right}");
        }
        for wrong in [2279.0, 4001.0, 37.5, 204_800.0] {
            assert_eq!(verdict(known, wrong), Verdict::Wrong, "{wrong}");
        }
    }

    #[test]
    fn estimates_have_no_verdict() {
        let known = Known::flops(1000.0);
        let of = |total, share| Verdict::of(&known, Some(Counted { total, share }));
        assert_eq!(of(1000.0, 0.99), Verdict::Ok);
        assert_eq!(of(1000.0, 0.98), Verdict::Estimated);
        assert_eq!(of(500.0, 0.5), Verdict::Estimated);
        assert_eq!(of(1000.0, f64::NAN), Verdict::Estimated);
        assert_eq!(Verdict::of(&known, None), Verdict::NotCounted);
    }

    #[test]
    fn start_of_the_program_cancels_out() {
        let counted = |total, share| Counted { total, share };
        let longer = counted(3070.0, 1.0).since(counted(1070.0, 0.5));
        assert_eq!(longer, counted(2000.0, 0.5));
    }

    #[test]
    fn ranges_are_printed_with_both_ends() {
        let (flops, bytes) = (Known::flops(2e9), Known::bytes(24e9, 32e9));
        assert_eq!(flops.to_string(), "2.000 G");
        assert_eq!(bytes.to_string(), "24.000 G … 32.000 G");
        assert_eq!(flops.ratio(1e9), "0.500");
        assert_eq!(bytes.ratio(24e9), "0.750 … 1.000");
    }

    #[test]
    fn success_requires_a_comparison_and_nothing_wrong() {
        use Verdict::{Estimated, NotCounted, Ok as Right, Wrong};
        assert!(conclude(&[Right, NotCounted, Estimated]).is_ok());
        assert!(conclude(&[Right, Wrong]).is_err());
        assert!(conclude(&[NotCounted, Estimated]).is_err());
        assert!(conclude(&[]).is_err());
    }
}
