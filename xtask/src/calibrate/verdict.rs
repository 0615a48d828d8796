//! What was counted beside what is known: numbers in, a verdict out.

use std::fmt;

/// Below this share of the time on counters, a count is an estimate.
const SHARE_MIN: f64 = 0.99;
/// Counts of a loop are exact; the start of the program is not quite the same in both runs.
const FLOPS_OFF: f64 = 0.02;
/// Caches keep a little of the traffic to themselves.
const BYTES_FEWER: f64 = 0.05;
/// The rest of the node has traffic too.
const BYTES_MORE: f64 = 0.25;

/// What the counters should tell.
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
            fewer: FLOPS_OFF,
            more: FLOPS_OFF,
        }
    }

    /// The truth lies between the two.
    pub fn bytes(least: f64, most: f64) -> Self {
        Self {
            least,
            most,
            fewer: BYTES_FEWER,
            more: BYTES_MORE,
        }
    }

    fn accepts(&self, counted: f64) -> bool {
        let fewest = self.least * (1.0 - self.fewer);
        let most = self.most * (1.0 + self.more);
        (fewest..=most).contains(&counted)
    }

    /// How many times as much as known: of both ends, where they differ.
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

/// 10⁹.
pub fn giga(number: f64) -> String {
    format!("{:.3} G", number / 1e9)
}

/// What a run counted, or the difference of two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Counted {
    pub total: f64,
    /// Share of the time that all its events were on counters.
    pub share: f64,
}

impl Counted {
    /// Without what both runs did: the start of the program.
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
    /// Events took turns, or were on another kind of core.
    Estimated,
    NotCounted,
}

impl Verdict {
    pub fn of(known: &Known, counted: Option<Counted>) -> Self {
        match counted {
            None => Self::NotCounted,
            // A share that is no number is none.
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
            Self::Estimated => "no verdict: not on counters all the time",
            Self::NotCounted => "not counted here",
        })
    }
}

/// Whether all is well, in a line.
pub fn conclude(verdicts: &[Verdict]) -> Result<String, String> {
    let count = |which| verdicts.iter().filter(|verdict| **verdict == which).count();
    let (ok, wrong) = (count(Verdict::Ok), count(Verdict::Wrong));
    let compared = ok + wrong;
    let rest = verdicts.len() - compared;
    match (compared, wrong) {
        (0, _) => Err("nothing was compared, so nothing is known of these counters".to_owned()),
        (_, 0) => Ok(format!("{ok} ok, {rest} not compared")),
        _ => Err(format!(
            "{wrong} of {compared} WRONG: the codes or formulas of the CPU's table, or a machine that was not idle"
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
    fn flops_are_exact_to_two_percent() {
        let known = Known::flops(1000.0);
        for right in [980.0, 1000.0, 1020.0] {
            assert_eq!(verdict(known, right), Verdict::Ok, "{right}");
        }
        // Fused operations that count once, vectors that count as scalars, other precision.
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
    fn an_estimate_is_no_verdict() {
        let known = Known::flops(1000.0);
        let of = |total, share| Verdict::of(&known, Some(Counted { total, share }));
        assert_eq!(of(1000.0, 0.99), Verdict::Ok);
        assert_eq!(of(1000.0, 0.98), Verdict::Estimated);
        assert_eq!(of(500.0, 0.5), Verdict::Estimated);
        assert_eq!(of(1000.0, f64::NAN), Verdict::Estimated);
        assert_eq!(Verdict::of(&known, None), Verdict::NotCounted);
    }

    #[test]
    fn the_start_of_the_program_cancels_out() {
        let counted = |total, share| Counted { total, share };
        let longer = counted(3070.0, 1.0).since(counted(1070.0, 0.5));
        assert_eq!(longer, counted(2000.0, 0.5));
    }

    #[test]
    fn both_numbers_are_printed() {
        let (flops, bytes) = (Known::flops(2e9), Known::bytes(24e9, 32e9));
        assert_eq!(flops.to_string(), "2.000 G");
        assert_eq!(bytes.to_string(), "24.000 G … 32.000 G");
        assert_eq!(flops.ratio(1e9), "0.500");
        assert_eq!(bytes.ratio(24e9), "0.750 … 1.000");
    }

    #[test]
    fn success_is_something_compared_and_nothing_wrong() {
        use Verdict::{Estimated, NotCounted, Ok as Right, Wrong};
        assert!(conclude(&[Right, NotCounted, Estimated]).is_ok());
        assert!(conclude(&[Right, Wrong]).is_err());
        assert!(conclude(&[NotCounted, Estimated]).is_err());
        assert!(conclude(&[]).is_err());
    }
}
