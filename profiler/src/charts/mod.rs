//! Drawings as SVG: readable without scripts, on paper, and by people who confuse colours.

mod axis;
pub mod bars;
mod drawing;
pub mod file;
pub mod heat_map;
pub mod intervals;
pub mod lanes;
pub mod lines;
pub mod pair;
pub mod png;
pub mod roofline;

pub use self::{
    axis::{Axis, Scale},
    drawing::{Drawing, Entry, Legend},
};
use crate::{analysis::series::Span, support::log};

/// Colours that can be distinguished by most people (Okabe and Ito, 2008); the classes `c0`… of the
/// style sheet.
pub const COLOURS: usize = 8;

/// Style sheet of all drawings, with a palette for light and one for dark screens.
pub const STYLE: &str = include_str!("style.css");

/// What can be drawn.
pub trait Chart {
    /// The drawing in a frame.
    fn draw(&self, frame: &Frame) -> Drawing;
}

/// What drawings of a run have in common.
#[derive(Clone, Debug)]
pub struct Frame {
    pub span: Span,
    pub layout: Layout,
    /// Regions, which are shown behind all drawings over time.
    pub bands: Vec<Band>,
}

/// A region behind a drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Band {
    /// µs since 1970-01-01 UTC.
    pub start: i64,
    pub end: i64,
    pub label: String,
    /// Number of its colour.
    pub colour: usize,
}

/// Sizes in CSS pixels (1/96 inch).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    pub width: f64,
    /// Height of drawings with a value axis.
    pub height: f64,
    /// Size of the text.
    pub text: f64,
}

impl Layout {
    /// For the report. The script relies on the width and the margins.
    pub const SCREEN: Self = Self {
        width: 760.0,
        height: 170.0,
        text: 10.0,
    };

    /// Space for the labels of the value axis.
    pub fn left(&self) -> f64 {
        6.4 * self.text
    }

    /// Space at the right, for half a label of the time axis.
    pub fn right(&self) -> f64 {
        0.8 * self.text
    }

    pub fn top(&self) -> f64 {
        0.6 * self.text
    }

    /// Space for the labels of the time axis.
    pub fn bottom(&self) -> f64 {
        1.8 * self.text
    }

    /// Width between the margins.
    pub fn inner(&self) -> f64 {
        self.width - self.left() - self.right()
    }

    /// Width of a text in a wide font.
    pub fn width_of(&self, text: &str) -> f64 {
        0.6 * self.text * text.chars().count() as f64
    }
}

/// Text in which nothing is markup, and nothing changes the text around it.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in log::escaped(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A number with as few digits as a drawing needs.
fn place(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
