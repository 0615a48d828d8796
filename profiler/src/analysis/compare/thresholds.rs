//! `--fail-on 'cpu_s>+5%'`.

use std::str::FromStr;

use thiserror::Error;

use super::{
    super::catalog::{PROCESSES, TARGET},
    Compared, Comparison, PRIMARY,
    statistics::{ALPHA, holm, least_measurements, least_p},
};
use crate::support::names;

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
#[error(
    "`{0}` is not a threshold; write FIGURE>+5% or FIGURE<-5%; figures are {known}",
    known = known(.0)
)]
pub struct ThresholdError(String);

/// Figures of every run, the one that is most similar to the figure of a threshold first.
fn known(text: &str) -> String {
    let figure = text.split(['<', '>', '=']).next().unwrap_or(text);
    let declared = PROCESSES.iter().chain(TARGET).map(|figure| figure.name);
    names::listed(figure.trim(), PRIMARY.into_iter().chain(declared))
}

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

/// What a comparison says about a threshold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    Within,
    /// A significant difference beyond the threshold, with its text.
    Exceeded(String),
    /// No difference of so few runs would be significant, with the reason.
    Unknown(String),
}

/// Judges thresholds. Their figures were chosen before the runs were seen: only they are tested together.
///
/// # Errors
///
/// When the runs do not have a figure.
pub fn judge(thresholds: &[Threshold], comparison: &Comparison) -> Result<Vec<Judgement>, String> {
    let figures: Vec<&Compared> = thresholds
        .iter()
        .map(|threshold| threshold.figure(comparison))
        .collect::<Result<_, _>>()?;
    let p: Vec<f64> = figures.iter().map(|figure| figure.p).collect();
    let corrected = holm(&p, &vec![1.0; p.len()]);
    let level = ALPHA / thresholds.len().max(1) as f64;
    let all = thresholds.iter().zip(figures).zip(corrected);
    Ok(all
        .map(|((threshold, figure), p)| {
            let [a, b] = figure.runs;
            if p <= ALPHA && figure.is_one_way() && threshold.is_beyond(figure) {
                Judgement::Exceeded(threshold.difference(figure))
            } else if p > ALPHA && least_p(a, b) > level {
                Judgement::Unknown(format!(
                    "{}: cannot be judged with {a} and {b} runs; record at least {} on each side",
                    threshold.text,
                    least_measurements(level)
                ))
            } else {
                Judgement::Within
            }
        })
        .collect())
}

impl Threshold {
    fn figure<'a>(&self, comparison: &'a Comparison) -> Result<&'a Compared, String> {
        let figures = comparison.figures.iter();
        let mut named = figures.clone().filter(|figure| figure.name == self.figure);
        named.next().ok_or_else(|| {
            let known = figures.map(|figure| figure.name.as_str());
            names::unknown("figure", &self.figure, known)
        })
    }

    fn is_beyond(&self, figure: &Compared) -> bool {
        let factor = figure.factor();
        if self.more {
            factor > self.factor
        } else {
            factor < self.factor
        }
    }

    fn difference(&self, figure: &Compared) -> String {
        let differs = if let Some(ratio) = figure.ratio {
            format!("differs by {:+.1} %", 100.0 * (ratio.value - 1.0))
        } else {
            let value = |value| figure.unit.format(value);
            let (a, b) = (value(figure.a.value), value(figure.b.value));
            format!("differs: {a} and {b}")
        };
        format!("{}: {} {differs}", self.text, self.figure)
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

    #[test]
    fn figures_are_named_in_errors() {
        for (text, named) in [
            ("cpus>5", "; figures are cpu_s, wall_s, "),
            (
                "target_energy=5%",
                "; figures are target_energy_j, wall_s, ",
            ),
            ("", "; figures are wall_s, cpu_s, "),
        ] {
            let error = text.parse::<Threshold>().expect_err("invalid");
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
