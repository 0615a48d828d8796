//! A value by row and time as shades.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    Chart, Drawing, Frame, Legend, Scale,
    axis::Area,
    drawing::{SHADES, subject},
    escaped,
    lines::rounded,
    place,
};

/// Range of logarithmic shades; smaller values have the lightest shade.
const DECADES: f64 = 4.0;
/// With more rows, the values for scripts would be most of a report.
const ROWS_WITH_VALUES: usize = 32;
/// Rows that are drawn. More are combined.
const ROWS: usize = 64;

/// A heat map. Nothing is drawn for 0.
#[derive(Clone, Debug)]
pub struct HeatMap {
    pub scale: Scale,
    /// The rows from the top.
    pub rows: Vec<Row>,
    /// The value of the darkest shade; the largest value if `None`.
    pub max: Option<f64>,
    pub shading: Shading,
}

/// How values become shades.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shading {
    Linear,
    /// Each shade is a factor.
    Logarithmic,
}

/// A row of a heat map.
#[derive(Clone, Debug)]
pub struct Row {
    pub label: String,
    /// What the row is about, for scripts.
    pub subject: Option<String>,
    pub values: Vec<Option<f64>>,
}

impl Chart for HeatMap {
    fn draw(&self, frame: &Frame) -> Drawing {
        let layout = &frame.layout;
        let rows = self.shown(frame.span.intervals);
        let values = rows.iter().flat_map(|row| row.values.iter().flatten());
        let largest = values.copied().fold(0.0, f64::max);
        let max = self.max.unwrap_or(largest).max(f64::MIN_POSITIVE);
        let row_height = (layout.height / rows.len().max(1) as f64).clamp(3.0, 1.6 * layout.text);
        let height = layout.top() + layout.bottom() + row_height * rows.len() as f64;
        let area = Area {
            frame,
            height,
            max: 1.0,
            least: None,
        };
        let mut drawing = Drawing {
            height,
            times: area.times(),
            legend: Legend::Shades(self.least(max), self.scale.format(max)),
            ..Drawing::default()
        };
        let every = (1.1 * layout.text / row_height).ceil().max(1.0);
        let mut next_label = 0.0;
        for (number, row) in rows.iter().enumerate() {
            let y = layout.top() + row_height * number as f64;
            let subject = subject(row.subject.as_deref());
            if number as f64 >= next_label {
                next_label += every;
                let _ = write!(
                    drawing.fixed,
                    "<text class=\"tick\"{subject} x=\"{}\" y=\"{}\" dy=\"{}\" text-anchor=\"end\">{}</text>",
                    place(layout.left() - 0.5 * layout.text),
                    place(y + row_height / 2.0),
                    place(0.3 * layout.text),
                    escaped(&shortened(&row.label)),
                );
            }
            let _ = write!(drawing.stretched, "<g{subject}>");
            let shades = row.values.iter().map(|value| self.shade(*value, max));
            let shades: Vec<_> = shades.collect();
            draw_row(&area, y, row_height, &shades, &mut drawing.stretched);
            drawing.stretched += "</g>";
        }
        drawing.fixed += &area.base_line();
        drawing.data = (rows.len() <= ROWS_WITH_VALUES).then(|| self.data(&rows));
        drawing
    }
}

impl HeatMap {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and the number of shades"
    )]
    fn shade(&self, value: Option<f64>, max: f64) -> Option<usize> {
        let share = value? / max;
        let share = match self.shading {
            Shading::Linear => share,
            Shading::Logarithmic if share > 0.0 => 1.0 + share.log10() / DECADES,
            Shading::Logarithmic => return Some(0),
        };
        let least = if share > 0.0 || value? == 0.0 {
            0.0
        } else {
            1e-9
        };
        Some((share.clamp(least, 1.0) * SHADES as f64).ceil() as usize)
    }

    /// The values for scripts.
    fn data(&self, rows: &[Row]) -> String {
        let rows = rows.iter().map(|row| {
            let values = row.values.iter().map(|value| value.map(rounded));
            (&row.label, values.collect::<Vec<_>>(), "")
        });
        let data = serde_json::json!({
            "unit": self.scale.symbol(),
            "lines": rows.collect::<Vec<_>>(),
            "rows": true,
        });
        data.to_string()
    }

    /// The value of the lightest shade, for people.
    fn least(&self, max: f64) -> String {
        match self.shading {
            Shading::Linear => "0".to_owned(),
            Shading::Logarithmic => self.scale.format(max / 10_f64.powf(DECADES)),
        }
    }

    /// The rows, each the mean of several if there are too many.
    fn shown(&self, intervals: usize) -> Vec<Row> {
        let size = self.rows.len().div_ceil(ROWS).max(1);
        let chunks = self.rows.chunks(size).map(|rows| {
            let [first, .., last] = rows else {
                return rows[0].clone();
            };
            let means = (0..intervals).map(|index| {
                let values = rows.iter().filter_map(|row| row.values[index]);
                let values: Vec<f64> = values.collect();
                (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
            });
            Row {
                label: range(&first.label, &last.label),
                subject: None,
                values: means.collect(),
            }
        });
        chunks.collect()
    }
}

/// Intervals of the same shade are parts of one path, neighbouring ones one line.
fn draw_row(area: &Area<'_>, y: f64, height: f64, shades: &[Option<usize>], content: &mut String) {
    let mut paths: BTreeMap<Option<usize>, String> = BTreeMap::new();
    let middle = place(y + (height - 0.5) / 2.0);
    let mut begin = 0;
    for index in 1..=shades.len() {
        let present = shades[begin];
        if index < shades.len() && shades[index] == present {
            continue;
        }
        if present != Some(0) {
            let (x, end) = (area.x(begin as f64), area.x(index as f64));
            let path = paths.entry(present).or_default();
            let _ = write!(path, "M{} {middle}H{}", place(x), place(end));
        }
        begin = index;
    }
    let width = place(height - 0.5);
    for (shade, path) in paths {
        let class = shade.map_or("gap".to_owned(), |shade| format!("h{shade}"));
        let _ = write!(
            content,
            "<path class=\"cell {class}\" stroke-width=\"{width}\" d=\"{path}\"/>"
        );
    }
}

/// `CPU 0–7` of `CPU 0` and `CPU 7`.
fn range(first: &str, last: &str) -> String {
    match (first.rsplit_once(' '), last.rsplit_once(' ')) {
        (Some((of, first)), Some((same, last))) if of == same => format!("{of} {first}–{last}"),
        _ => format!("{first}–{last}"),
    }
}

/// The label as long as there is space. The number of a CPU remains after the name of its node.
fn shortened(label: &str) -> String {
    const LONGEST: usize = 10;
    let length = label.chars().count();
    if length <= LONGEST {
        return label.to_owned();
    }
    let number = label.find(' ').map_or("", |space| &label[space..]);
    let number = Some(number).filter(|number| number.chars().count() < LONGEST - 2);
    let number = number.unwrap_or_default();
    let rest = LONGEST - 1 - number.chars().count();
    label
        .chars()
        .take(rest)
        .chain(['…'])
        .chain(number.chars())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        analysis::{figure::Unit, series::Span},
        charts::Layout,
    };

    #[test]
    fn labels_keep_the_number() {
        assert_eq!(range("CPU 0", "CPU 7"), "CPU 0–7");
        assert_eq!(range("node1 8", "node2 3"), "node1 8–node2 3");
        assert_eq!(range("node1", "node2"), "node1–node2");
        assert_eq!(shortened("rank 127"), "rank 127");
        assert_eq!(shortened("node017.example.org 12"), "node01… 12");
        assert_eq!(shortened("node017.example.org"), "node017.e…");
        assert_eq!(shortened("node1 8–node2 3"), "node1 8–n…");
    }

    #[test]
    fn equal_neighbours_are_one_line() {
        let row = Row {
            label: "cpu0".to_owned(),
            subject: Some("<cpu>".to_owned()),
            values: vec![Some(0.0), Some(50.0), Some(50.0), None],
        };
        let map = HeatMap {
            scale: Scale {
                unit: Unit::Percent,
                per_second: false,
            },
            rows: vec![row],
            max: Some(100.0),
            shading: Shading::Linear,
        };
        let span = Span {
            start: 0,
            end: 4_000_000,
            intervals: 4,
        };
        let drawn = map.draw(&Frame {
            span,
            layout: Layout::SCREEN,
            bands: Vec::new(),
        });
        let plot = drawn.stretched;
        assert_eq!(plot.matches('M').count(), 2, "{plot}");
        assert!(
            plot.contains("class=\"cell h4\"") && plot.contains("class=\"cell gap\""),
            "{plot}"
        );
        assert!(plot.contains("data-subject=\"&lt;cpu&gt;\""), "{plot}");
    }
}
