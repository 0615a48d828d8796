//! A drawing and its legend, before it is known where they are shown.

use std::fmt::Write as _;

use super::{COLOURS, Layout, escaped, place};

/// Parts of a drawing.
#[derive(Clone, Debug, Default)]
pub struct Drawing {
    pub height: f64,
    /// Behind everything: axes and labels.
    pub fixed: String,
    /// What zooming stretches.
    pub stretched: String,
    /// In front of everything.
    pub above: String,
    /// Labels of the time axis.
    pub times: String,
    pub legend: Legend,
    /// Values for scripts, as JSON.
    pub data: Option<String>,
}

/// Legend of a drawing.
#[derive(Clone, Debug, Default)]
pub enum Legend {
    #[default]
    None,
    Entries(Vec<Entry>),
    /// Shades from the first to the second value.
    Shades(String, String),
}

/// Entry of a legend.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// SVG elements in a square of 12 units.
    pub key: String,
    pub label: String,
    /// Mean and largest value.
    pub values: String,
    /// What it is about, for scripts.
    pub subject: Option<String>,
}

impl Entry {
    /// An entry with a square of the colour with this number.
    pub fn coloured(colour: usize, label: String, values: String) -> Self {
        let key = format!(
            "<rect class=\"c{}\" width=\"12\" height=\"12\"/>",
            colour % COLOURS
        );
        Self {
            key,
            label,
            values,
            subject: None,
        }
    }
}

/// Attribute that makes an element select what it is about.
pub(super) fn subject(subject: Option<&str>) -> String {
    subject.map_or(String::new(), |subject| {
        format!(" data-subject=\"{}\"", escaped(subject))
    })
}

/// Shades of heat maps: the classes `h1`… of the style sheet.
pub const SHADES: usize = 8;

impl Drawing {
    /// Whether it has a time axis.
    fn is_over_time(&self) -> bool {
        !self.times.is_empty()
    }

    /// The drawing without the element around it.
    pub fn content(&self, layout: &Layout) -> String {
        if !self.is_over_time() {
            return format!("{}{}", self.fixed, self.above);
        }
        let (left, width, height) = (layout.left(), layout.inner(), self.height);
        let Self {
            fixed,
            stretched,
            above,
            times,
            ..
        } = self;
        format!(
            "{fixed}<svg class=\"view\" x=\"{left}\" y=\"0\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"{left} 0 {width} {height}\" preserveAspectRatio=\"none\">{stretched}</svg>\
             {above}<g class=\"times\">{times}</g>"
        )
    }

    /// An SVG element for HTML, with a description for screen readers, the legend, and the values for
    /// scripts.
    pub fn html(&self, layout: &Layout, title: &str) -> String {
        let data = self.data.as_ref().map_or(String::new(), |data| {
            // `<` would end the element.
            let data = data.replace('<', "\\u003c");
            format!("<script type=\"application/json\" class=\"data\">{data}</script>")
        });
        let class = if self.is_over_time() {
            "chart"
        } else {
            "still"
        };
        format!(
            "<svg class=\"{class}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">{}</svg>{}{data}",
            layout.width,
            self.height,
            escaped(title),
            self.content(layout),
            self.legend.html(),
        )
    }
}

impl Legend {
    fn html(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Entries(entries) => {
                let entries = entries.iter().map(|entry| {
                    format!(
                        "<li{}><svg viewBox=\"0 0 12 12\" aria-hidden=\"true\">{}</svg> {} <span class=\"values\">{}</span></li>",
                        subject(entry.subject.as_deref()),
                        entry.key,
                        escaped(&entry.label),
                        escaped(&entry.values)
                    )
                });
                format!("<ul class=\"legend\">{}</ul>", entries.collect::<String>())
            }
            Self::Shades(least, most) => format!(
                "<p class=\"legend\">{} <svg viewBox=\"0 0 80 10\" class=\"key\" aria-hidden=\"true\">{}</svg> {}</p>",
                escaped(least),
                shades(10.0),
                escaped(most)
            ),
        }
    }

    /// Rows under a drawing that begins at `top`, and their height.
    pub fn svg(&self, layout: &Layout, top: f64) -> (String, f64) {
        let row = 1.5 * layout.text;
        let square = 0.9 * layout.text;
        match self {
            Self::None => (String::new(), 0.0),
            Self::Entries(entries) => {
                let mut svg = String::new();
                let (mut x, mut y) = (layout.left(), top + 0.3 * row);
                for entry in entries {
                    let text = format!("{} {}", entry.label, entry.values);
                    let width = square + layout.width_of(&text) + 2.0 * layout.text;
                    if x + width > layout.width && x > layout.left() {
                        (x, y) = (layout.left(), y + row);
                    }
                    let _ = write!(
                        svg,
                        "<g transform=\"translate({} {}) scale({:.3})\">{}</g>\
                         <text class=\"lane\" x=\"{}\" y=\"{}\">{} <tspan class=\"soft\">{}</tspan></text>",
                        place(x),
                        place(y),
                        square / 12.0,
                        entry.key,
                        place(x + square + 0.4 * layout.text),
                        place(y + square),
                        escaped(&entry.label),
                        escaped(&entry.values),
                    );
                    x += width;
                }
                (svg, y + row - top)
            }
            Self::Shades(least, most) => {
                let x = layout.left();
                let key = x + layout.width_of(least) + 0.5 * layout.text;
                let svg = format!(
                    "<text class=\"lane\" x=\"{}\" y=\"{}\">{}</text>\
                     <g transform=\"translate({} {})\">{}</g>\
                     <text class=\"lane\" x=\"{}\" y=\"{}\">{}</text>",
                    place(x),
                    place(top + row),
                    escaped(least),
                    place(key),
                    place(top + row - square),
                    shades(square),
                    place(key + square * SHADES as f64 + 0.5 * layout.text),
                    place(top + row),
                    escaped(most),
                );
                (svg, 1.5 * row)
            }
        }
    }
}

fn shades(size: f64) -> String {
    let shade = |shade: usize| {
        format!(
            "<rect class=\"h{shade}\" x=\"{}\" width=\"{size}\" height=\"{size}\"/>",
            place(size * (shade - 1) as f64)
        )
    };
    (1..=SHADES).map(shade).collect()
}
