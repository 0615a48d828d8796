//! Bars over time, one lane for each: processes or regions.

use std::fmt::Write as _;

use super::{BOTTOM, COLOURS, Drawing, LEFT, TOP, axis::Area, escaped, place};
use crate::analysis::series::Span;

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// µs since 1970-01-01 UTC.
    pub start: i64,
    pub end: i64,
    pub label: String,
    /// Number of its colour.
    pub colour: usize,
    /// Lane, from the top.
    pub lane: usize,
}

const LANE: f64 = 15.0;

/// Draws bars.
pub fn draw(title: &str, span: Span, bars: &[Bar]) -> String {
    let lanes = bars.iter().map(|bar| bar.lane + 1).max().unwrap_or(0);
    let height = TOP + BOTTOM + LANE * lanes as f64;
    let area = Area {
        height,
        max: 1.0,
        span,
    };
    let mut drawing = Drawing {
        fixed: area.base_line(),
        times: area.times(),
        ..Drawing::default()
    };
    for bar in bars {
        let (x, end) = (
            area.x(span.position(bar.start)),
            area.x(span.position(bar.end)),
        );
        let width = (end - x).max(1.0);
        let y = TOP + LANE * bar.lane as f64;
        let label = escaped(&bar.label);
        let _ = write!(
            drawing.stretched,
            "<rect class=\"bar c{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{label}</title></rect>",
            bar.colour % COLOURS,
            place(x),
            place(y),
            place(width),
            LANE - 3.0,
        );
        // The label is inside the bar if there is room, otherwise beside it.
        let room = bar.label.chars().count() as f64 * 5.6;
        let right = super::WIDTH - super::RIGHT;
        let (at, anchor) = if room < width || end + room + 4.0 < right {
            let at = if room < width { x } else { end };
            (at + 3.0, "start")
        } else if x - room - 4.0 > LEFT {
            (x - 3.0, "end")
        } else {
            (x.max(LEFT) + 3.0, "start")
        };
        let _ = write!(
            drawing.above,
            "<text class=\"lane\" x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{label}</text>",
            place(at),
            place(y + 9.5),
        );
    }
    drawing.svg(height, title)
}
