//! Drawings as SVG: readable without scripts, on paper, and by people who confuse colours.

mod axis;
pub mod heat_map;
pub mod intervals;
pub mod lanes;
pub mod lines;
pub mod pair;

pub use self::axis::Scale;

/// Width of all drawings, in units of the view box.
pub const WIDTH: f64 = 760.0;
/// Space for the labels of the value axis.
const LEFT: f64 = 64.0;
const RIGHT: f64 = 8.0;
/// Space for the labels of the time axis.
const BOTTOM: f64 = 18.0;
const TOP: f64 = 6.0;
/// Colours that can be distinguished by most people (Okabe and Ito, 2008); the classes `c0`… of the
/// style sheet.
pub const COLOURS: usize = 8;

/// Text in which nothing is markup.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Parts of a drawing over time.
#[derive(Default)]
struct Drawing {
    /// Behind everything: axes and labels.
    fixed: String,
    /// What zooming stretches.
    stretched: String,
    /// In front of everything.
    above: String,
    /// Labels of the time axis.
    times: String,
}

impl Drawing {
    /// An SVG element with a description for screen readers.
    fn svg(&self, height: f64, title: &str) -> String {
        let title = escaped(title);
        let width = WIDTH - LEFT - RIGHT;
        let Self {
            fixed,
            stretched,
            above,
            times,
        } = self;
        format!(
            "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\">\
             {fixed}<svg class=\"view\" x=\"{LEFT}\" y=\"0\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"{LEFT} 0 {width} {height}\" preserveAspectRatio=\"none\">{stretched}</svg>\
             {above}<g class=\"times\">{times}</g></svg>"
        )
    }
}

/// A number with as few digits as a drawing needs.
fn place(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}
