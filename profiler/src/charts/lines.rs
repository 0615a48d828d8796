//! Lines or stacked areas over time.

use std::fmt::Write as _;

use super::{BOTTOM, COLOURS, Drawing, Scale, TOP, axis::Area, escaped, place};
use crate::analysis::series::Span;

/// A line: means of the intervals, `None` for a gap.
#[derive(Clone, Debug)]
pub struct Line {
    pub label: String,
    pub means: Vec<Option<f64>>,
    /// Minimum and maximum of the intervals, if they are shown.
    pub range: Vec<Option<(f64, f64)>>,
    /// Largest value of a sample, if it is known: that of the means can be smaller.
    pub max: Option<f64>,
}

/// A plot over time.
pub struct Plot<'a> {
    pub title: &'a str,
    pub span: Span,
    pub scale: Scale,
    pub lines: &'a [Line],
    /// Whether the values add up.
    pub stacked: bool,
    /// A limit that is drawn if the values come near it, with its name.
    pub limit: Option<(f64, &'a str)>,
}

const HEIGHT: f64 = 170.0;

impl Plot<'_> {
    fn max(&self) -> f64 {
        let intervals = self.span.intervals;
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

    /// The drawing with a legend under it.
    pub fn draw(&self) -> String {
        let highest = self.max();
        let limit = self.limit.filter(|(limit, _)| highest > 0.5 * limit);
        let max = highest.max(limit.map_or(0.0, |(limit, _)| limit));
        let area = Area {
            height: HEIGHT,
            max: if max > 0.0 { max * 1.04 } else { 1.0 },
            span: self.span,
        };
        let mut drawing = Drawing {
            fixed: area.value_axis(self.scale) + &area.base_line(),
            times: area.times(),
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
            let y = place(area.y(limit));
            let _ = write!(
                drawing.above,
                "<line class=\"limit\" x1=\"64\" x2=\"752\" y1=\"{y}\" y2=\"{y}\"/>\
                 <text class=\"tick\" x=\"750\" y=\"{y}\" dy=\"-3\" text-anchor=\"end\">{}</text>",
                escaped(name)
            );
        }
        drawing.svg(HEIGHT, self.title) + &self.legend() + &self.data()
    }

    /// The values for scripts. `<` would end the element.
    fn data(&self) -> String {
        let per_second = if self.scale.per_second { "/s" } else { "" };
        let lines: Vec<_> = self
            .lines
            .iter()
            .map(|line| {
                let values = line.means.iter().map(|value| value.map(rounded));
                (&line.label, values.collect::<Vec<_>>())
            })
            .collect();
        let data = serde_json::json!({
            "unit": format!("{}{per_second}", self.scale.unit.symbol()),
            "lines": lines,
        });
        let data = data.to_string().replace('<', "\\u003c");
        format!("<script type=\"application/json\" class=\"data\">{data}</script>")
    }

    fn areas(&self, area: &Area, content: &mut String) {
        let mut below = vec![0.0; self.span.intervals];
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

    fn legend(&self) -> String {
        let mut legend = String::from("<ul class=\"legend\">");
        for (index, line) in self.lines.iter().enumerate() {
            let known: Vec<f64> = line.means.iter().flatten().copied().collect();
            let mean = known.iter().sum::<f64>() / known.len().max(1) as f64;
            let max = known.iter().copied().chain(line.max).fold(0.0, f64::max);
            let _ = write!(
                legend,
                "<li><svg viewBox=\"0 0 12 12\" aria-hidden=\"true\"><rect class=\"c{}\" width=\"12\" \
                 height=\"12\"/></svg> {} <span class=\"values\">mean {}, max {}</span></li>",
                index % COLOURS,
                escaped(&line.label),
                escaped(&self.scale.format(mean)),
                escaped(&self.scale.format(max)),
            );
        }
        legend + "</ul>"
    }
}

/// Five significant digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.4e}").parse().unwrap_or(value)
}

/// The range of each interval, where it is wider than the line.
fn ranges(area: &Area, line: &Line, class: usize, content: &mut String) {
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
fn path(area: &Area, values: &[Option<f64>]) -> String {
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

const _: () = assert!(HEIGHT > TOP + BOTTOM);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::figure::Unit;

    #[test]
    fn gaps_interrupt_the_line_and_text_is_escaped() {
        let line = Line {
            label: "<script>".to_owned(),
            means: vec![Some(1.0), None, Some(2.0), Some(4.0)],
            range: vec![Some((1.0, 4.0)), None, None, None],
            max: Some(5.0),
        };
        let drawn = Plot {
            title: "a & b",
            span: Span {
                start: 0,
                end: 4_000_000,
                intervals: 4,
            },
            scale: Scale {
                unit: Unit::Count,
                per_second: true,
            },
            lines: &[line],
            stacked: false,
            limit: None,
        }
        .draw();
        assert!(
            !drawn.contains("<script>") && drawn.contains("&lt;script&gt;"),
            "{drawn}"
        );
        assert!(drawn.contains("aria-label=\"a &amp; b\""), "{drawn}");
        let path = drawn
            .split("class=\"line s0\" d=\"")
            .nth(1)
            .expect("a path");
        let path = path.split('"').next().expect("an end");
        assert_eq!(path.matches('M').count(), 2, "{path}");
        assert!(drawn.contains("mean 2.33/s, max 5/s"), "{drawn}");
    }
}
