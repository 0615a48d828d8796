//! Axes: round numbers between the limits of the data.

use std::fmt::Write as _;

use super::{COLOURS, Frame, escaped, place};
use crate::analysis::figure::Unit;

/// Unit of a value axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    pub unit: Unit,
    /// Whether values are rates: the unit per second.
    pub per_second: bool,
}

impl Scale {
    /// Symbol of the unit.
    pub fn symbol(self) -> String {
        let per_second = if self.per_second { "/s" } else { "" };
        format!("{}{per_second}", self.unit.symbol())
    }

    /// A value for people.
    pub fn format(self, value: f64) -> String {
        match (self.unit, self.per_second) {
            // Seconds per second are CPUs or threads.
            (Unit::Seconds, true) => format!("{value:.2}"),
            (unit, true) => format!("{}/s", unit.format(value)),
            (unit, false) => unit.format(value),
        }
    }

    /// A label of the axis, in which whole numbers have no fraction.
    pub(super) fn label(self, value: f64) -> String {
        let text = match (self.unit, self.per_second) {
            (Unit::Seconds, true) => place(value),
            (Unit::Percent, _) => format!("{} %", place(value)),
            _ => self.format(value),
        };
        text.replace(".0 ", " ").replace(".00 ", " ")
    }

    /// Distance of the ticks, of which there are at most five up to `max`.
    pub(super) fn step(self, max: f64) -> f64 {
        let base: f64 = if self.unit == Unit::Bytes {
            1024.0
        } else {
            1000.0
        };
        let rough = max / 5.0;
        let power = base.powf((rough.max(1e-300).ln() / base.ln()).floor());
        let steps = if self.unit == Unit::Bytes {
            vec![
                1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0,
            ]
        } else {
            vec![1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]
        };
        let step = steps.into_iter().find(|step| step * power >= rough);
        step.unwrap_or(base) * power
    }
}

/// The kind of a value axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// From 0.
    Linear,
    /// Powers of 10 from that of the smallest positive value. Values of 0 are on the base line.
    Logarithmic,
}

/// The drawing area of a plot over time.
pub struct Area<'a> {
    pub frame: &'a Frame,
    pub height: f64,
    pub max: f64,
    /// The lowest value of a logarithmic axis.
    pub least: Option<f64>,
}

impl Area<'_> {
    /// Horizontal place of a position in intervals of the span.
    pub fn x(&self, position: f64) -> f64 {
        let layout = &self.frame.layout;
        let share = position / self.frame.span.intervals as f64;
        layout.left() + layout.inner() * share.clamp(0.0, 1.0)
    }

    /// Vertical place of a value.
    pub fn y(&self, value: f64) -> f64 {
        let top = self.frame.layout.top();
        let share = match self.least {
            Some(least) if value > least => (value / least).ln() / (self.max / least).ln(),
            Some(_) => 0.0,
            None => value / self.max,
        };
        top + (self.bottom() - top) * (1.0 - share.clamp(0.0, 1.0))
    }

    /// Place of the base line.
    fn bottom(&self) -> f64 {
        self.height - self.frame.layout.bottom()
    }

    /// Left and right end.
    fn sides(&self) -> [f64; 2] {
        let layout = &self.frame.layout;
        [layout.left(), layout.width - layout.right()]
    }

    /// Lines and labels of the value axis.
    pub fn value_axis(&self, scale: Scale) -> String {
        let [left, right] = self.sides();
        let text = self.frame.layout.text;
        let mut axis = String::new();
        for value in self.ticks(scale) {
            let y = place(self.y(value));
            let label = escaped(&scale.label(value));
            let _ = write!(
                axis,
                "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{y}\" y2=\"{y}\"/>\
                 <text class=\"tick\" x=\"{}\" y=\"{y}\" dy=\"{}\" text-anchor=\"end\">{label}</text>",
                place(left - 0.5 * text),
                place(0.3 * text),
            );
        }
        axis
    }

    /// Values with a line.
    fn ticks(&self, scale: Scale) -> Vec<f64> {
        let max = self.max * 1.0001;
        if let Some(least) = self.least {
            // At most about eight labels.
            let every = ((max / least).log10() / 8.0).ceil().max(1.0);
            let factor = 10_f64.powf(every);
            let powers = std::iter::successors(Some(least), |value| Some(value * factor));
            let powers = powers.take(MOST_TICKS);
            return powers.take_while(|value| *value <= max).collect();
        }
        multiples(scale.step(self.max), max).collect()
    }

    /// The line under the drawing.
    pub fn base_line(&self) -> String {
        let (y, [left, right]) = (self.bottom(), self.sides());
        format!("<line class=\"axis\" x1=\"{left}\" x2=\"{right}\" y1=\"{y}\" y2=\"{y}\"/>")
    }

    /// A line across the drawing at a limit, with its name.
    pub fn limit(&self, value: f64, name: &str) -> String {
        let (y, [left, right]) = (place(self.y(value)), self.sides());
        format!(
            "<line class=\"under\" x1=\"{left}\" x2=\"{right}\" y1=\"{y}\" y2=\"{y}\"/>\
             <line class=\"limit\" x1=\"{left}\" x2=\"{right}\" y1=\"{y}\" y2=\"{y}\"/>\
             <text class=\"lane halo\" x=\"{}\" y=\"{y}\" dy=\"-3\" text-anchor=\"end\">{}</text>",
            right - 2.0,
            escaped(name)
        )
    }

    /// The regions: a tint, with a line of full colour above it.
    pub fn bands(&self) -> String {
        let top = self.frame.layout.top();
        let edge = 0.3 * self.frame.layout.text;
        let mut bands = String::new();
        for band in &self.frame.bands {
            let span = &self.frame.span;
            let (x, end) = (
                self.x(span.position(band.start)),
                self.x(span.position(band.end)),
            );
            let (x, width) = (place(x), place((end - x).max(0.5)));
            let colour = band.colour % COLOURS;
            let _ = write!(
                bands,
                "<g class=\"c{colour}\"><title>{}</title>\
                 <rect class=\"band\" x=\"{x}\" y=\"{top}\" width=\"{width}\" height=\"{}\"/>\
                 <rect class=\"edge\" x=\"{x}\" y=\"{}\" width=\"{width}\" height=\"{edge}\"/></g>",
                escaped(&band.label),
                place(self.bottom() - top),
                place(top - edge),
            );
        }
        bands
    }

    /// Labels of the time axis: time since the start of the run.
    pub fn times(&self) -> String {
        let (span, layout) = (&self.frame.span, &self.frame.layout);
        let seconds = (span.end - span.start) as f64 / 1e6;
        // A label needs the width of six letters.
        let labels = (layout.inner() / (8.0 * layout.text)).clamp(2.0, 8.0);
        let step = time_step(seconds, labels);
        let (bottom, y) = (self.bottom(), self.height - 0.4 * layout.text);
        let mut axis = String::new();
        let mut time = 0.0;
        while time <= seconds {
            let (x, label) = (self.x(time / span.step()), elapsed(time, step));
            // The last label is not cut off.
            let (at, anchor) = if x + layout.width_of(&label) / 2.0 > layout.width {
                (layout.width, "end")
            } else {
                (x, "middle")
            };
            let (x, at) = (place(x), place(at));
            let _ = write!(
                axis,
                "<line class=\"axis\" x1=\"{x}\" x2=\"{x}\" y1=\"{bottom}\" y2=\"{}\"/>\
                 <text class=\"tick\" x=\"{at}\" y=\"{y}\" text-anchor=\"{anchor}\">{label}</text>",
                bottom + 3.0,
            );
            time += step;
        }
        axis
    }
}

/// More than an axis has: values near the largest number must not make it endless.
const MOST_TICKS: usize = 20;

/// The multiples of a step from 0 to `max`.
pub(super) fn multiples(step: f64, max: f64) -> impl Iterator<Item = f64> {
    let multiples = (0..MOST_TICKS).map(move |number| number as f64 * step);
    multiples.take_while(move |value| *value <= max)
}

/// Seconds between labels of the time axis, of which there are at most `labels` after the first.
pub(super) fn time_step(seconds: f64, labels: f64) -> f64 {
    const STEPS: [f64; 20] = [
        0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
        1800.0, 3600.0, 7200.0, 21_600.0, 86_400.0,
    ];
    let found = STEPS.into_iter().find(|step| seconds / step <= labels);
    found.unwrap_or_else(|| 86_400.0 * (seconds / labels / 86_400.0).ceil())
}

/// Time since the start: `30 s`, `1:30`, `2:00 h`.
pub(super) fn elapsed(time: f64, step: f64) -> String {
    if step < 1.0 {
        return format!("{time:.2} s").replace(".00 ", " ");
    }
    let (hours, rest) = ((time / 3600.0).floor(), time % 3600.0);
    let (minutes, seconds) = ((rest / 60.0).floor(), rest % 60.0);
    if step < 60.0 && hours == 0.0 && minutes == 0.0 {
        format!("{seconds:.0} s")
    } else if step >= 60.0 || hours > 0.0 {
        format!("{hours:.0}:{minutes:02.0} h")
    } else {
        format!("{minutes:.0}:{seconds:02.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_of_the_largest_numbers_end() {
        for max in [f64::MAX, f64::INFINITY, f64::NAN] {
            let scale = Scale {
                unit: Unit::Bytes,
                per_second: true,
            };
            assert!(multiples(scale.step(max), max).count() <= MOST_TICKS);
        }
    }

    #[test]
    fn ticks_are_round() {
        let bytes = Scale {
            unit: Unit::Bytes,
            per_second: true,
        };
        assert!((bytes.step(5.0 * 1024.0 * 1024.0) - 1_048_576.0).abs() < 1.0);
        assert_eq!(bytes.label(2_097_152.0), "2 MiB/s");
        let percent = Scale {
            unit: Unit::Percent,
            per_second: false,
        };
        assert!((percent.step(100.0) - 20.0).abs() < 1e-9);
        let cpus = Scale {
            unit: Unit::Seconds,
            per_second: true,
        };
        assert!((cpus.step(0.004) - 0.001).abs() < 1e-9);
    }

    #[test]
    fn times_are_short() {
        assert_eq!(elapsed(0.5, 0.1), "0.50 s");
        assert_eq!(elapsed(30.0, 10.0), "30 s");
        assert_eq!(elapsed(90.0, 10.0), "1:30");
        assert_eq!(elapsed(5400.0, 600.0), "1:30 h");
    }
}
