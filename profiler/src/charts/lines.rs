//! Lines or stacked areas over time.

use std::fmt::Write as _;

use super::{
    COLOURS, Chart, Drawing, Entry, Frame, Legend, Scale,
    axis::{Area, Axis},
    place,
};

/// A line: means of the intervals, `None` for a gap.
#[derive(Clone, Debug, Default)]
pub struct Line {
    pub label: String,
    /// What the line is about, for scripts; `None` for the whole run.
    pub subject: Option<String>,
    /// Name of the figure, by which scripts find that of a selected process.
    pub figure: &'static str,
    pub means: Vec<Option<f64>>,
    /// Minimum and maximum of the intervals, if they are shown.
    pub range: Vec<Option<(f64, f64)>>,
    /// Largest value of a sample, if it is known: that of the means can be smaller.
    pub max: Option<f64>,
}

/// A plot over time.
#[derive(Clone, Debug)]
pub struct Plot {
    pub scale: Scale,
    pub lines: Vec<Line>,
    /// Whether the values add up.
    pub stacked: bool,
    /// A limit that is drawn if the values come near it, with its name.
    pub limit: Option<(f64, &'static str)>,
    pub axis: Axis,
}

impl Chart for Plot {
    fn draw(&self, frame: &Frame) -> Drawing {
        let highest = self.max(frame.span.intervals);
        let limit = self.limit.filter(|(limit, _)| highest > 0.5 * limit);
        let max = highest.max(limit.map_or(0.0, |(limit, _)| limit));
        let least = (self.axis == Axis::Logarithmic).then(|| self.least());
        let max = if max > 0.0 { max * 1.04 } else { 1.0 };
        let area = Area {
            frame,
            height: frame.layout.height,
            // At least one power of ten.
            max: least.map_or(max, |least| max.max(10.0 * least)),
            least,
        };
        let mut drawing = Drawing {
            height: area.height,
            fixed: area.value_axis(self.scale) + &area.base_line(),
            stretched: area.bands(),
            times: area.times(),
            legend: self.legend(),
            data: Some(self.data()),
            ..Drawing::default()
        };
        if self.stacked {
            self.areas(&area, &mut drawing.stretched);
        } else {
            for (index, line) in self.lines.iter().enumerate() {
                let class = index % COLOURS;
                ranges(&area, line, class, &mut drawing.stretched);
                let _ = write!(
                    drawing.stretched,
                    "<path class=\"line s{class}\" d=\"{}\"/>",
                    path(&area, &line.means)
                );
            }
        }
        if let Some((limit, name)) = limit {
            drawing.above += &area.limit(limit, name);
        }
        drawing
    }
}

impl Plot {
    fn max(&self, intervals: usize) -> f64 {
        let top = |index: usize| {
            if self.stacked {
                let values = self.lines.iter().filter_map(|line| line.means[index]);
                return values.sum::<f64>();
            }
            let tops = self.lines.iter().filter_map(|line| {
                let range = line.range.get(index).copied().flatten();
                range.map(|(_, max)| max).or(line.means[index])
            });
            tops.fold(0.0, f64::max)
        };
        (0..intervals).map(top).fold(0.0, f64::max)
    }

    /// The power of ten below all positive values.
    fn least(&self) -> f64 {
        let values = self
            .lines
            .iter()
            .flat_map(|line| line.means.iter().flatten());
        let positive = values.copied().filter(|value| *value > 0.0);
        positive
            .reduce(f64::min)
            .map_or(1.0, |least| 10_f64.powf(least.log10().floor()))
    }

    /// The values for scripts.
    fn data(&self) -> String {
        let lines: Vec<_> = self
            .lines
            .iter()
            .map(|line| {
                let values = line.means.iter().map(|value| value.map(rounded));
                let values: Vec<_> = values.collect();
                (&line.label, values, line.figure, &line.subject)
            })
            .collect();
        let data = serde_json::json!({
            "unit": self.scale.symbol(),
            "lines": lines,
        });
        data.to_string()
    }

    fn areas(&self, area: &Area<'_>, content: &mut String) {
        let mut below = vec![0.0; area.frame.span.intervals];
        for (index, line) in self.lines.iter().enumerate() {
            let above: Vec<f64> = below
                .iter()
                .zip(&line.means)
                .map(|(below, value)| below + value.unwrap_or(0.0))
                .collect();
            let mut shape = String::new();
            for (position, value) in above.iter().enumerate() {
                let y = place(area.y(*value));
                let command = if position == 0 { 'M' } else { 'L' };
                let (x, next) = (area.x(position as f64), area.x(position as f64 + 1.0));
                let _ = write!(shape, "{command}{} {y}H{}", place(x), place(next));
            }
            for (position, value) in below.iter().enumerate().rev() {
                let (x, next) = (area.x(position as f64), area.x(position as f64 + 1.0));
                let _ = write!(
                    shape,
                    "L{} {}H{}",
                    place(next),
                    place(area.y(*value)),
                    place(x)
                );
            }
            let class = index % COLOURS;
            let _ = write!(content, "<path class=\"area c{class}\" d=\"{shape}Z\"/>");
            below = above;
        }
    }

    fn legend(&self) -> Legend {
        let entries = self.lines.iter().enumerate().map(|(index, line)| {
            let known: Vec<f64> = line.means.iter().flatten().copied().collect();
            let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
            let max = known.iter().copied().chain(line.max).fold(0.0, f64::max);
            let (mean, max) = (self.scale.format(mean), self.scale.format(max));
            let values = format!("mean {mean}, max {max}");
            Entry {
                subject: line.subject.clone(),
                ..Entry::coloured(index, line.label.clone(), values)
            }
        });
        Legend::Entries(entries.collect())
    }
}

/// Five significant digits.
pub fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// The range of each interval, where it is wider than the line.
fn ranges(area: &Area<'_>, line: &Line, class: usize, content: &mut String) {
    let mut shape = String::new();
    for (position, range) in line.range.iter().enumerate() {
        let Some((min, max)) = range else { continue };
        let (top, bottom) = (area.y(*max), area.y(*min));
        if bottom - top > 1.5 {
            let x = place(area.x(position as f64 + 0.5));
            let _ = write!(shape, "M{x} {}V{}", place(top), place(bottom));
        }
    }
    if !shape.is_empty() {
        let _ = write!(content, "<path class=\"range s{class}\" d=\"{shape}\"/>");
    }
}

/// A path through the values, interrupted at gaps.
fn path(area: &Area<'_>, values: &[Option<f64>]) -> String {
    let mut path = String::new();
    let mut is_open = false;
    for (position, value) in values.iter().enumerate() {
        let Some(value) = value else {
            is_open = false;
            continue;
        };
        let (x, y) = (area.x(position as f64 + 0.5), area.y(*value));
        let command = if is_open { 'L' } else { 'M' };
        let _ = write!(path, "{command}{} {}", place(x), place(y));
        if !is_open {
            // A single value is visible too.
            path.push_str("h.5");
        }
        is_open = true;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        analysis::{figure::Unit, series::Span},
        charts::{Band, Layout},
    };

    #[test]
    fn gaps_interrupt_the_line_and_text_is_escaped() {
        let line = Line {
            label: "<script>".to_owned(),
            means: vec![Some(1.0), None, Some(2.0), Some(4.0)],
            range: vec![Some((1.0, 4.0)), None, None, None],
            max: Some(5.0),
            ..Line::default()
        };
        let plot = Plot {
            scale: Scale {
                unit: Unit::Count,
                per_second: true,
            },
            lines: vec![line],
            stacked: false,
            limit: None,
            axis: Axis::Linear,
        };
        let frame = Frame {
            span: Span {
                start: 0,
                end: 4_000_000,
                intervals: 4,
            },
            layout: Layout::SCREEN,
            bands: vec![Band {
                start: 1_000_000,
                end: 2_000_000,
                label: "a < b".to_owned(),
                colour: 9,
            }],
        };
        let drawn = plot.draw(&frame).html(&frame.layout, "a & b");
        assert!(
            !drawn.contains("<script>") && drawn.contains("&lt;script&gt;"),
            "{drawn}"
        );
        assert!(drawn.contains("aria-label=\"a &amp; b\""), "{drawn}");
        assert!(
            drawn.contains("<g class=\"c1\"><title>a &lt; b</title>"),
            "{drawn}"
        );
        let path = drawn
            .split("class=\"line s0\" d=\"")
            .nth(1)
            .expect("a path");
        let path = path.split('"').next().expect("an end");
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert!(drawn.contains("mean 2.33/s, max 5/s"), "{drawn}");
        let logarithmic = Plot {
            axis: Axis::Logarithmic,
            ..plot
        };
        // 1 to 10: the labels are the powers of ten.
        let drawn = logarithmic.draw(&frame).fixed;
        assert!(
            drawn.contains(">1/s<") && drawn.contains(">10/s<"),
            "{drawn}"
        );
    }
}
