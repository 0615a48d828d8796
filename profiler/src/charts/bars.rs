//! Parts of a whole as horizontal bars of equal length.

use std::fmt::Write as _;

use super::{Chart, Drawing, Entry, Frame, Legend, Scale, drawing::subject, escaped, place};

/// Bars with the same parts.
#[derive(Clone, Debug)]
pub struct Bars {
    pub scale: Scale,
    /// Labels of the parts, each with the class of its colour.
    pub parts: Vec<(&'static str, &'static str)>,
    /// From the top.
    pub rows: Vec<Row>,
}

/// A bar.
#[derive(Clone, Debug)]
pub struct Row {
    pub label: String,
    /// What the bar is about, for scripts.
    pub subject: Option<String>,
    /// The value of each part.
    pub values: Vec<f64>,
}

impl Chart for Bars {
    fn draw(&self, frame: &Frame) -> Drawing {
        let layout = &frame.layout;
        let row_height = 1.7 * layout.text;
        let height = layout.top() + layout.bottom() + row_height * self.rows.len() as f64;
        let (left, right) = (0.36 * layout.width, layout.width - 7.0 * layout.text);
        let bottom = height - layout.bottom();
        let mut fixed = String::new();
        for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
            let x = place(left + (right - left) * percent / 100.0);
            let _ = write!(
                fixed,
                "<line class=\"grid\" x1=\"{x}\" x2=\"{x}\" y1=\"{}\" y2=\"{}\"/>\
                 <text class=\"tick\" x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{percent} %</text>",
                place(layout.top()),
                place(bottom),
                place(bottom + 1.3 * layout.text),
            );
        }
        for (number, row) in self.rows.iter().enumerate() {
            let y = layout.top() + row_height * number as f64;
            let total: f64 = row.values.iter().sum();
            let baseline = y + 0.62 * row_height;
            let _ = write!(
                fixed,
                "<g{}><text class=\"lane\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                subject(row.subject.as_deref()),
                place(left - 0.6 * layout.text),
                place(baseline),
                escaped(&fitting(&row.label, left / layout.width_of("x"))),
            );
            let mut x = left;
            for ((label, class), value) in self.parts.iter().zip(&row.values) {
                let share = if total > 0.0 { value / total } else { 0.0 };
                let width = (right - left) * share;
                if width > 0.0 {
                    let _ = write!(
                        fixed,
                        "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\">\
                         <title>{label}: {:.1} %, {}</title></rect>",
                        place(x),
                        place(y + 0.1 * row_height),
                        place(width),
                        place(0.8 * row_height),
                        100.0 * share,
                        escaped(&self.scale.format(*value)),
                    );
                }
                x += width;
            }
            let _ = write!(
                fixed,
                "<text class=\"tick\" x=\"{}\" y=\"{}\">{}</text></g>",
                place(right + 0.5 * layout.text),
                place(baseline),
                escaped(&self.scale.format(total)),
            );
        }
        Drawing {
            height,
            fixed,
            legend: self.legend(),
            ..Drawing::default()
        }
    }
}

impl Bars {
    fn legend(&self) -> Legend {
        let entries = self.parts.iter().map(|(label, class)| Entry {
            key: format!("<rect class=\"{class}\" width=\"12\" height=\"12\"/>"),
            label: (*label).to_owned(),
            ..Entry::default()
        });
        Legend::Entries(entries.collect())
    }
}

/// The beginning of a text, if all of it is longer than this number of letters.
fn fitting(text: &str, letters: f64) -> String {
    let count = text.chars().count();
    if count as f64 <= letters - 1.0 {
        return text.to_owned();
    }
    let kept = text.chars().enumerate();
    let kept = kept.take_while(|(number, _)| *number as f64 <= letters - 3.0);
    kept.map(|(_, letter)| letter).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        analysis::{figure::Unit, series::Span},
        charts::Layout,
    };

    #[test]
    fn parts_fill_the_bar_and_text_is_escaped() {
        let bars = Bars {
            scale: Scale {
                unit: Unit::Seconds,
                per_second: false,
            },
            parts: vec![("a", "c0"), ("b", "c1"), ("c", "c2")],
            rows: vec![
                Row {
                    label: "<script>".repeat(20),
                    subject: Some("\"".to_owned()),
                    values: vec![1.0, 3.0, 0.0],
                },
                Row {
                    label: "idle".to_owned(),
                    subject: None,
                    values: vec![0.0; 3],
                },
            ],
        };
        let frame = Frame {
            span: Span {
                start: 0,
                end: 1,
                intervals: 1,
            },
            layout: Layout::SCREEN,
            bands: Vec::new(),
        };
        let drawn = bars.draw(&frame).fixed;
        assert!(
            !drawn.contains("<script>") && drawn.contains("&lt;script"),
            "{drawn}"
        );
        assert!(drawn.contains("data-subject=\"&quot;\""), "{drawn}");
        assert!(
            drawn.contains("<title>a: 25.0 %, 1.00 s</title>"),
            "{drawn}"
        );
        assert!(
            drawn.contains("<title>b: 75.0 %, 3.00 s</title>"),
            "{drawn}"
        );
        // Nothing is drawn for parts without a value, and for rows without values.
        assert_eq!(drawn.matches("<rect").count(), 2, "{drawn}");
        let widths = drawn.split("width=\"").skip(1);
        let widths = widths.filter_map(|rest| rest.split('"').next()?.parse::<f64>().ok());
        let bar = Layout::SCREEN.width * 0.64 - 70.0;
        assert!((widths.sum::<f64>() - bar).abs() < 0.2, "{drawn}");
    }
}
