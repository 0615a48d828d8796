//! A value by row and time as shades.

use std::fmt::Write as _;

use super::{BOTTOM, Drawing, LEFT, Scale, TOP, axis::Area, escaped, place};
use crate::analysis::series::Span;

/// Shades: the classes `h1`… of the style sheet. Nothing is drawn for 0.
const SHADES: usize = 8;
/// Rows that are drawn. More are combined.
const ROWS: usize = 64;

/// A heat map.
pub struct HeatMap<'a> {
    pub title: &'a str,
    pub span: Span,
    pub scale: Scale,
    /// Label and values of each row, from the top.
    pub rows: &'a [(String, Vec<Option<f64>>)],
    /// The value of the darkest shade; the largest value if `None`.
    pub max: Option<f64>,
}

impl HeatMap<'_> {
    /// The drawing with the range of its shades.
    pub fn draw(&self) -> String {
        let rows = self.shown();
        let values = rows.iter().flat_map(|(_, values)| values.iter().flatten());
        let largest = values.copied().fold(0.0, f64::max);
        let max = self.max.unwrap_or(largest).max(f64::MIN_POSITIVE);
        let row_height = (160.0 / rows.len().max(1) as f64).clamp(3.0, 16.0);
        let height = TOP + BOTTOM + row_height * rows.len() as f64;
        let area = Area {
            height,
            max: 1.0,
            span: self.span,
        };
        let mut drawing = Drawing {
            times: area.times(),
            ..Drawing::default()
        };
        let every = (11.0 / row_height).ceil().max(1.0);
        let mut next_label = 0.0;
        for (number, (label, values)) in rows.iter().enumerate() {
            let y = TOP + row_height * number as f64;
            if number as f64 >= next_label {
                next_label += every;
                let _ = write!(
                    drawing.fixed,
                    "<text class=\"tick\" x=\"{}\" y=\"{}\" dy=\"3\" text-anchor=\"end\">{}</text>",
                    LEFT - 5.0,
                    place(y + row_height / 2.0),
                    escaped(&shortened(label)),
                );
            }
            draw_row(&area, y, row_height, values, max, &mut drawing.stretched);
        }
        drawing.fixed += &area.base_line();
        let key = (1..=SHADES).map(|shade| {
            format!(
                "<rect class=\"h{shade}\" x=\"{}\" width=\"10\" height=\"10\"/>",
                10 * (shade - 1)
            )
        });
        let legend = format!(
            "<p class=\"legend\">0 <svg viewBox=\"0 0 80 10\" class=\"key\" aria-hidden=\"true\">{}</svg> {}</p>",
            key.collect::<String>(),
            escaped(&self.scale.format(max)),
        );
        drawing.svg(height, self.title) + &legend
    }

    /// The rows, each the mean of several if there are too many.
    fn shown(&self) -> Vec<(String, Vec<Option<f64>>)> {
        let size = self.rows.len().div_ceil(ROWS).max(1);
        let chunks = self.rows.chunks(size).map(|rows| {
            let label = match rows {
                [(only, _)] => only.clone(),
                [(first, _), .., (last, _)] => format!("{first}–{last}"),
                [] => String::new(),
            };
            let means = (0..self.span.intervals).map(|index| {
                let values = rows.iter().filter_map(|(_, values)| values[index]);
                let values: Vec<f64> = values.collect();
                (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
            });
            (label, means.collect())
        });
        chunks.collect()
    }
}

/// Neighbouring intervals of the same shade are one rectangle.
fn draw_row(
    area: &Area,
    y: f64,
    height: f64,
    values: &[Option<f64>],
    max: f64,
    content: &mut String,
) {
    let mut begin = 0;
    for index in 1..=values.len() {
        let present = shade(values[begin], max);
        if index < values.len() && shade(values[index], max) == present {
            continue;
        }
        if present != Some(0) {
            let class = present.map_or("gap".to_owned(), |shade| format!("h{shade}"));
            let (x, end) = (area.x(begin as f64), area.x(index as f64));
            let _ = write!(
                content,
                "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>",
                place(x),
                place(y),
                place(end - x),
                place(height - 0.5),
            );
        }
        begin = index;
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and the number of shades"
)]
fn shade(value: Option<f64>, max: f64) -> Option<usize> {
    let share = (value? / max).clamp(0.0, 1.0);
    Some((share * SHADES as f64).ceil() as usize)
}

fn shortened(label: &str) -> String {
    const LONGEST: usize = 10;
    if label.chars().count() <= LONGEST {
        return label.to_owned();
    }
    label.chars().take(LONGEST - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::figure::Unit;

    #[test]
    fn equal_neighbours_are_one_rectangle() {
        let rows = [(
            "cpu0".to_owned(),
            vec![Some(0.0), Some(50.0), Some(50.0), None],
        )];
        let drawn = HeatMap {
            title: "CPUs",
            span: Span {
                start: 0,
                end: 4_000_000,
                intervals: 4,
            },
            scale: Scale {
                unit: Unit::Percent,
                per_second: false,
            },
            rows: &rows,
            max: Some(100.0),
        }
        .draw();
        let plot = drawn.split("<p class").next().expect("a drawing");
        assert_eq!(plot.matches("<rect").count(), 2, "{plot}");
        assert!(
            plot.contains("class=\"h4\"") && plot.contains("class=\"gap\""),
            "{plot}"
        );
    }
}
