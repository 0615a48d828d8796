//! `--fail-on 'cpu_s>+5%'`.

use std::str::FromStr;

use thiserror::Error;

use super::{Comparison, Verdict};

/// A difference of a figure that is a failure.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    text: String,
    figure: String,
    /// Whether more is worse.
    more: bool,
    /// The factor beyond which it fails.
    factor: f64,
}

/// Why a text is not a threshold.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{0}` is not a threshold: write FIGURE>+5% or FIGURE<-5%")]
pub struct ThresholdError(String);

impl FromStr for Threshold {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        let error = || ThresholdError(text.to_owned());
        let at = text.find(['<', '>']).ok_or_else(error)?;
        let (figure, limit) = text.split_at(at);
        let more = limit.starts_with('>');
        let percent = limit[1..].trim().strip_suffix('%').ok_or_else(error)?;
        let percent: f64 = percent.trim().parse().map_err(|_| error())?;
        let factor = 1.0 + percent / 100.0;
        if figure.trim().is_empty() || !factor.is_finite() || factor <= 0.0 {
            return Err(error());
        }
        Ok(Self {
            text: text.to_owned(),
            figure: figure.trim().to_owned(),
            more,
            factor,
        })
    }
}

impl Threshold {
    /// Why the comparison fails, if it does: a significant difference beyond the threshold.
    ///
    /// # Errors
    ///
    /// When the runs do not have the figure.
    pub fn exceeded(&self, comparison: &Comparison) -> Result<Option<String>, String> {
        let figures = comparison.figures.iter();
        let named = figures.clone().find(|figure| figure.name == self.figure);
        let Some(figure) = named else {
            let known: Vec<_> = figures.map(|figure| figure.name.as_str()).collect();
            return Err(format!(
                "no figure `{}` in the runs: {}",
                self.figure,
                known.join(", ")
            ));
        };
        let verdict = figure.verdict();
        let (is_beyond, change) = match figure.ratio {
            Some(ratio) if self.more => (ratio.value > self.factor, ratio.value),
            Some(ratio) => (ratio.value < self.factor, ratio.value),
            // From or to 0.
            None => (true, f64::INFINITY),
        };
        let is_worse = verdict
            == if self.more {
                Verdict::More
            } else {
                Verdict::Less
            };
        let differs = if change.is_finite() {
            format!("differs by {:+.1} %", 100.0 * (change - 1.0))
        } else {
            let value = |value| figure.unit.format(value);
            let (a, b) = (value(figure.a.value), value(figure.b.value));
            format!("differs: {a} and {b}")
        };
        let why = || format!("{}: {} {differs}", self.text, self.figure);
        Ok((is_beyond && is_worse).then(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_parsed() {
        let threshold: Threshold = "cpu_s>+5%".parse().expect("a threshold");
        assert_eq!((threshold.figure.as_str(), threshold.more), ("cpu_s", true));
        assert!((threshold.factor - 1.05).abs() < 1e-12);
        let less: Threshold = "flop_dp < -10 %".parse().expect("a threshold");
        assert!(!less.more && (less.factor - 0.9).abs() < 1e-12);
        for text in [
            "",
            "cpu_s",
            "cpu_s>5",
            ">5%",
            "cpu_s>x%",
            "cpu_s<-100%",
            "cpu_s>inf%",
        ] {
            assert!(text.parse::<Threshold>().is_err(), "{text}");
        }
    }
}
