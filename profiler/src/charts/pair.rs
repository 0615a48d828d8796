//! The same figures of two runs over time, one above the other on one scale. Time is cut into columns:
//! in each of them both runs begin at the same place.

use std::fmt::Write as _;

use super::{
    COLOURS, Scale,
    axis::{elapsed, multiples, time_step},
    escaped, place,
};

/// A column: the time of each run in it, s since the start of the run.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub label: String,
    pub starts: [f64; 2],
    pub ends: [f64; 2],
}

/// Values of a figure in intervals of equal length, `None` for a gap.
pub type Values = Vec<Option<f64>>;

/// Lines or stacked areas of two runs.
pub struct Pair<'a> {
    pub title: &'a str,
    pub scale: Scale,
    pub labels: &'a [&'a str],
    /// By run and line.
    pub values: [Vec<Values>; 2],
    /// Length of an interval of each run, s.
    pub steps: [f64; 2],
    pub stacked: bool,
    pub columns: &'a [Column],
}

const PANEL: f64 = 96.0;
/// Above the panels, for the names of the columns.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 16.0;
const BETWEEN: f64 = 10.0;
const BOTTOM: f64 = 18.0;
const HEIGHT: f64 = TOP + 2.0 * PANEL + BETWEEN + BOTTOM;
/// Space between columns.
const GAP: f64 = 8.0;

impl Column {
    fn length(&self) -> f64 {
        let length = |run: usize| self.ends[run] - self.starts[run];
        length(0).max(length(1)).max(1e-9)
    }
}

/// A column with its place.
struct Placed<'a> {
    column: &'a Column,
    x: f64,
    /// Width of a second.
    second: f64,
}

impl Placed<'_> {
    fn width(&self) -> f64 {
        self.second * self.column.length()
    }

    fn end(&self) -> f64 {
        self.x + self.width()
    }

    /// The visible part of an interval of a run: its ends.
    fn interval(&self, run: usize, index: usize, step: f64) -> Option<(f64, f64)> {
        let (start, end) = (self.column.starts[run], self.column.ends[run]);
        let from = (index as f64 * step).max(start);
        let to = ((index + 1) as f64 * step).min(end);
        let x = |time: f64| self.x + (time - start) * self.second;
        (to > from).then(|| (x(from), x(to)))
    }
}

impl Pair<'_> {
    fn max(&self) -> f64 {
        let of_run = |lines: &Vec<Values>| {
            let intervals = lines.first().map_or(0, Vec::len);
            let top = |index: usize| {
                let values = lines.iter().filter_map(|line| line[index]);
                if self.stacked {
                    values.sum::<f64>()
                } else {
                    values.fold(0.0, f64::max)
                }
            };
            (0..intervals).map(top).fold(0.0, f64::max)
        };
        of_run(&self.values[0]).max(of_run(&self.values[1]))
    }

    fn placed(&self) -> Vec<Placed<'_>> {
        let gaps = GAP * self.columns.len().saturating_sub(1) as f64;
        let total: f64 = self.columns.iter().map(Column::length).sum();
        let second = (WIDTH - LEFT - RIGHT - gaps) / total.max(1e-9);
        let mut x = LEFT;
        let columns = self.columns.iter().map(|column| {
            let placed = Placed { column, x, second };
            x = placed.end() + GAP;
            placed
        });
        columns.collect()
    }

    /// The drawing with a legend under it.
    pub fn draw(&self) -> String {
        let max = self.max();
        let max = if max > 0.0 { max * 1.04 } else { 1.0 };
        let placed = self.placed();
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escaped(self.title)
        );
        for (run, name) in ["A", "B"].into_iter().enumerate() {
            let top = TOP + (PANEL + BETWEEN) * run as f64;
            let y = |value: f64| top + PANEL * (1.0 - (value / max).clamp(0.0, 1.0));
            self.value_axis(&placed, max, &y, &mut svg);
            let _ = write!(
                svg,
                "<text class=\"side\" x=\"4\" y=\"{}\" dy=\"4\">{name}</text>",
                place(top + PANEL / 2.0)
            );
            for column in &placed {
                if self.stacked {
                    self.areas(run, column, &y, &mut svg);
                } else {
                    self.lines(run, column, &y, &mut svg);
                }
            }
        }
        for column in &placed {
            times(column, placed.len() > 1, &mut svg);
        }
        svg + "</svg>" + &self.legend()
    }

    fn value_axis(
        &self,
        placed: &[Placed<'_>],
        max: f64,
        y: &dyn Fn(f64) -> f64,
        svg: &mut String,
    ) {
        // A panel has half the height of a plot.
        let step = 2.0 * self.scale.step(max);
        for value in multiples(step, max) {
            let at = place(y(value));
            let class = if value == 0.0 { "axis" } else { "grid" };
            for column in placed {
                let (x, end) = (place(column.x), place(column.end()));
                let _ = write!(
                    svg,
                    "<line class=\"{class}\" x1=\"{x}\" x2=\"{end}\" y1=\"{at}\" y2=\"{at}\"/>"
                );
            }
            let _ = write!(
                svg,
                "<text class=\"tick\" x=\"{}\" y=\"{at}\" dy=\"3\" text-anchor=\"end\">{}</text>",
                LEFT - 5.0,
                escaped(&self.scale.label(value)),
            );
        }
    }

    fn lines(&self, run: usize, column: &Placed<'_>, y: &dyn Fn(f64) -> f64, svg: &mut String) {
        for (number, line) in self.values[run].iter().enumerate() {
            let mut path = String::new();
            let mut is_open = false;
            for (index, value) in line.iter().enumerate() {
                let Some((from, to)) = column.interval(run, index, self.steps[run]) else {
                    continue;
                };
                let Some(value) = value else {
                    is_open = false;
                    continue;
                };
                let command = if is_open { 'L' } else { 'M' };
                let _ = write!(
                    path,
                    "{command}{} {}H{}",
                    place(from),
                    place(y(*value)),
                    place(to)
                );
                is_open = true;
            }
            let class = number % COLOURS;
            let _ = write!(svg, "<path class=\"line s{class}\" d=\"{path}\"/>");
        }
    }

    fn areas(&self, run: usize, column: &Placed<'_>, y: &dyn Fn(f64) -> f64, svg: &mut String) {
        let lines = &self.values[run];
        let intervals = lines.first().map_or(0, Vec::len);
        let mut below = vec![0.0; intervals];
        for (number, line) in lines.iter().enumerate() {
            let mut path = String::new();
            for (index, value) in line.iter().enumerate() {
                let at = column.interval(run, index, self.steps[run]);
                let (Some((from, to)), Some(value)) = (at, value) else {
                    continue;
                };
                let (low, high) = (below[index], below[index] + value);
                below[index] = high;
                let (from, to) = (place(from), place(to));
                let _ = write!(
                    path,
                    "M{from} {}H{to}V{}H{from}Z",
                    place(y(high)),
                    place(y(low))
                );
            }
            let class = number % COLOURS;
            let _ = write!(svg, "<path class=\"area c{class}\" d=\"{path}\"/>");
        }
    }

    fn legend(&self) -> String {
        let mut legend = String::from("<ul class=\"legend\">");
        for (number, label) in self.labels.iter().enumerate() {
            let means = [0, 1].map(|run: usize| {
                let known = self.values[run].get(number).into_iter().flatten().flatten();
                let (sum, count) =
                    known.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
                if count == 0 {
                    return "–".to_owned();
                }
                self.scale.format(sum / f64::from(count))
            });
            let _ = write!(
                legend,
                "<li><svg viewBox=\"0 0 12 12\" aria-hidden=\"true\"><rect class=\"c{}\" width=\"12\" \
                 height=\"12\"/></svg> {} <span class=\"values\">mean A {}, B {}</span></li>",
                number % COLOURS,
                escaped(label),
                escaped(&means[0]),
                escaped(&means[1]),
            );
        }
        legend + "</ul>"
    }
}

/// Name and time axis of a column.
fn times(column: &Placed<'_>, named: bool, svg: &mut String) {
    let (bottom, width) = (HEIGHT - BOTTOM, column.width());
    if named {
        // 5.6 is the width of a letter.
        let room = (width / 5.6).floor();
        let letters = column.column.label.chars().enumerate();
        let label: String = letters
            .take_while(|(index, _)| (*index as f64) < room)
            .map(|(_, letter)| letter)
            .collect();
        let _ = write!(
            svg,
            "<text class=\"lane\" x=\"{}\" y=\"11\">{}<title>{}</title></text>",
            place(column.x),
            escaped(&label),
            escaped(&column.column.label),
        );
    }
    // A label needs 60 units.
    let seconds = 60.0 / column.second;
    let step = time_step(8.0 * seconds, 8.0);
    let mut time = 0.0;
    while time <= column.column.length() {
        let x = place(column.x + time * column.second);
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{x}\" x2=\"{x}\" y1=\"{bottom}\" y2=\"{}\"/>\
             <text class=\"tick\" x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 3.0,
            HEIGHT - 4.0,
            elapsed(time, step),
        );
        time += step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::figure::Unit;

    fn column(starts: [f64; 2], ends: [f64; 2]) -> Column {
        Column {
            label: "solve".to_owned(),
            starts,
            ends,
        }
    }

    #[test]
    fn both_runs_have_one_scale_and_begin_at_the_same_place() {
        let columns = [column([2.0, 4.0], [4.0, 8.0])];
        let pair = Pair {
            title: "t",
            scale: Scale {
                unit: Unit::Seconds,
                per_second: true,
            },
            labels: &["a"],
            values: [
                vec![vec![Some(1.0); 4]],
                vec![vec![None, None, Some(2.0), Some(2.0)]],
            ],
            steps: [1.0, 2.0],
            stacked: false,
            columns: &columns,
        };
        assert!((pair.max() - 2.0).abs() < 1e-9);
        let placed = pair.placed();
        let [of_a, of_b] = [(0, 2, 1.0), (1, 2, 2.0)].map(|(run, index, step)| {
            placed[0]
                .interval(run, index, step)
                .expect("it is in the column")
        });
        assert!((of_a.0 - LEFT).abs() < 1e-9 && (of_b.0 - LEFT).abs() < 1e-9);
        // Run B takes twice as long and has the whole width.
        assert!((of_b.1 - of_b.0 - 2.0 * (of_a.1 - of_a.0)).abs() < 1e-9);
        assert!((placed[0].end() - (WIDTH - RIGHT)).abs() < 1e-9);
        assert_eq!(placed[0].interval(0, 1, 1.0), None, "before the column");
        assert!(pair.draw().contains("mean A 1.00, B 2.00"));
    }
}
