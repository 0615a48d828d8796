//! Bars over time, one lane for each: processes or regions.

use std::fmt::Write as _;

use super::{COLOURS, Chart, Drawing, Frame, axis::Area, drawing::subject, escaped, place};

/// Bars over time.
#[derive(Clone, Debug)]
pub struct Lanes(pub Vec<Bar>);

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// µs since 1970-01-01 UTC.
    pub start: i64,
    pub end: i64,
    pub label: String,
    /// What the bar is about, for scripts.
    pub subject: Option<String>,
    /// Number of its colour.
    pub colour: usize,
    /// Lane, from the top.
    pub lane: usize,
}

impl Chart for Lanes {
    fn draw(&self, frame: &Frame) -> Drawing {
        let layout = &frame.layout;
        let lane = 1.5 * layout.text;
        let lanes = self.0.iter().map(|bar| bar.lane + 1).max().unwrap_or(0);
        let height = layout.top() + layout.bottom() + lane * lanes as f64;
        let area = Area {
            frame,
            height,
            max: 1.0,
            least: None,
        };
        let mut drawing = Drawing {
            height,
            fixed: area.base_line(),
            times: area.times(),
            ..Drawing::default()
        };
        for bar in &self.0 {
            let (x, end) = (
                area.x(frame.span.position(bar.start)),
                area.x(frame.span.position(bar.end)),
            );
            let width = (end - x).max(1.0);
            let y = layout.top() + lane * bar.lane as f64;
            let label = escaped(&bar.label);
            let subject = subject(bar.subject.as_deref());
            let _ = write!(
                drawing.stretched,
                "<rect class=\"bar c{}\"{subject} x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{label}</title></rect>",
                bar.colour % COLOURS,
                place(x),
                place(y),
                place(width),
                place(0.8 * lane),
            );
            // The label is inside the bar if there is room, otherwise beside it.
            let room = layout.width_of(&bar.label);
            let (left, right) = (layout.left(), layout.width - layout.right());
            let (at, anchor) = if room < width || end + room + 4.0 < right {
                let at = if room < width { x } else { end };
                (at + 3.0, "start")
            } else if x - room - 4.0 > left {
                (x - 3.0, "end")
            } else {
                (x.max(left) + 3.0, "start")
            };
            let _ = write!(
                drawing.above,
                "<text class=\"lane\"{subject} x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{label}</text>",
                place(at),
                place(y + 0.63 * lane),
            );
        }
        drawing
    }
}
