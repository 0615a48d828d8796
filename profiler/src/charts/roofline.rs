//! A roofline: performance against arithmetic intensity, both on logarithmic axes.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{COLOURS, Chart, Drawing, Entry, Frame, Layout, Legend, escaped, place};

/// Powers of ten of an axis, at most and at least.
const MOST: f64 = 6.0;
const LEAST: f64 = 2.0;
/// Dots that are drawn.
const DOTS: usize = 3000;
/// Shades of the dots: the classes `h1`… of the style sheet.
const SHADES: f64 = 8.0;

/// A horizontal or sloped line with a label.
#[derive(Clone, Debug)]
pub struct Roof {
    /// FLOP/s or B/s.
    pub per_second: f64,
    pub label: String,
}

/// Shape of a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Diamond,
    Square,
    /// In the colour with this number.
    Circle(usize),
}

/// A labelled point.
#[derive(Clone, Debug)]
pub struct Mark {
    pub label: String,
    /// FLOP per byte.
    pub intensity: f64,
    /// FLOP/s.
    pub flops: f64,
    pub shape: Shape,
}

/// An unlabelled point.
#[derive(Clone, Debug)]
pub struct Dot {
    /// FLOP per byte.
    pub intensity: f64,
    /// FLOP/s.
    pub flops: f64,
    /// Position in time, from 0 to 1.
    pub time: f64,
}

/// The plot. Values are positive.
#[derive(Clone, Debug)]
pub struct Plot {
    pub compute: Vec<Roof>,
    pub memory: Vec<Roof>,
    /// The largest values of a sample: a lower bound of the ceilings.
    pub best: [Option<f64>; 2],
    pub dots: Vec<Dot>,
    pub marks: Vec<Mark>,
    pub legend: Vec<Entry>,
}

/// Powers of ten at the ends of the axes, and limits of the drawing area.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axes {
    x: (f64, f64),
    y: (f64, f64),
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    height: f64,
    /// Size of the text.
    text: f64,
}

/// Powers of ten that contain all values, the largest with some space above it. What is no positive
/// number has no place.
fn range(values: impl Iterator<Item = f64>, space: f64) -> (f64, f64) {
    let values = values.filter(|value| *value > 0.0 && value.is_finite());
    let (min, max) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(min, max), value| {
        (value.min(min), value.max(max))
    });
    if min > max {
        return (0.0, LEAST);
    }
    let high = (max.log10() + space.log10()).ceil();
    let low = min.log10().floor().max(high - MOST);
    (low.min(high - LEAST), high)
}

impl Axes {
    fn of(plot: &Plot, layout: &Layout) -> Self {
        let points = || {
            let marks = plot.marks.iter().map(|mark| (mark.intensity, mark.flops));
            marks.chain(plot.dots.iter().map(|dot| (dot.intensity, dot.flops)))
        };
        let of =
            |roofs: &[Roof]| -> Vec<f64> { roofs.iter().map(|roof| roof.per_second).collect() };
        let (compute, memory) = (of(&plot.compute), of(&plot.memory));
        // The roofs meet there.
        let ridges = compute
            .iter()
            .flat_map(|compute| memory.iter().map(move |memory| compute / memory));
        let x = range(points().map(|(x, _)| x).chain(ridges), 2.0);
        let tops = compute.iter().copied().chain(plot.best[0]);
        let y = range(points().map(|(_, y)| y).chain(tops), 1.5);
        let (text, height) = (layout.text, 0.566 * layout.width);
        Self {
            x,
            y,
            left: 5.8 * text,
            right: layout.width - text,
            top: 0.8 * text,
            bottom: height - 3.8 * text,
            height,
            text,
        }
    }

    fn x(&self, intensity: f64) -> f64 {
        self.left
            + (self.right - self.left) * (intensity.log10() - self.x.0) / (self.x.1 - self.x.0)
    }

    fn y(&self, flops: f64) -> f64 {
        self.bottom - (self.bottom - self.top) * (flops.log10() - self.y.0) / (self.y.1 - self.y.0)
    }

    fn contain(&self, intensity: f64, flops: f64) -> bool {
        let inside = |value: f64, (low, high): (f64, f64)| (low..=high).contains(&value.log10());
        inside(intensity, self.x) && inside(flops, self.y)
    }

    /// Part of the line of a bandwidth that is in the area and below `top`: its ends as intensities.
    fn slope(&self, bandwidth: f64, top: f64) -> Option<(f64, f64)> {
        let (left, right) = (10_f64.powf(self.x.0), 10_f64.powf(self.x.1));
        let (low, high) = (10_f64.powf(self.y.0), 10_f64.powf(self.y.1).min(top));
        let start = left.max(low / bandwidth);
        let end = right.min(high / bandwidth);
        (start < end).then_some((start, end))
    }

    /// Grid, labels and titles.
    fn draw(&self) -> String {
        let Self {
            left,
            right,
            top,
            bottom,
            text,
            ..
        } = *self;
        let mut svg = String::new();
        let mut tick = |power: f64, is_x: bool| {
            let label = number(if is_x { power } else { power - 9.0 });
            if is_x {
                let x = place(self.x(10_f64.powf(power)));
                let _ = write!(
                    svg,
                    "<line class=\"grid\" x1=\"{x}\" x2=\"{x}\" y1=\"{top}\" y2=\"{bottom}\"/>\
                     <text class=\"tick\" x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                    bottom + 1.3 * text
                );
            } else {
                let y = place(self.y(10_f64.powf(power)));
                let _ = write!(
                    svg,
                    "<line class=\"grid\" x1=\"{left}\" x2=\"{right}\" y1=\"{y}\" y2=\"{y}\"/>\
                     <text class=\"tick\" x=\"{}\" y=\"{y}\" dy=\"3\" text-anchor=\"end\">{label}</text>",
                    left - 0.5 * text
                );
            }
        };
        for ((low, high), is_x) in [(self.x, true), (self.y, false)] {
            let mut power = low;
            while power <= high {
                tick(power, is_x);
                power += 1.0;
            }
        }
        // Marks at 2, 3, … 9 of each power show that the axes are logarithmic.
        let mut minor = String::new();
        for ((low, high), is_x) in [(self.x, true), (self.y, false)] {
            let mut power = low;
            while power < high {
                for digit in 2..10 {
                    let value = f64::from(digit) * 10_f64.powf(power);
                    if is_x {
                        let _ = write!(minor, "M{} {bottom}v-3", place(self.x(value)));
                    } else {
                        let _ = write!(minor, "M{left} {}h3", place(self.y(value)));
                    }
                }
                power += 1.0;
            }
        }
        let middle = f64::midpoint(self.top, self.bottom);
        let _ = write!(
            svg,
            "<path class=\"axis\" fill=\"none\" d=\"{minor}M{left} {top}V{bottom}H{right}V{top}Z\"/>\
             <text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">Arithmetic intensity, FLOP per byte of main memory</text>\
             <text class=\"tick\" x=\"{0:.1}\" y=\"{middle}\" text-anchor=\"middle\" transform=\"rotate(-90 {0:.1} {middle})\">Performance, GFLOP/s</text>",
            f64::midpoint(self.left, self.right),
            self.height - 0.6 * text,
        );
        svg
    }
}

/// A power of ten as a number.
fn number(power: f64) -> String {
    if power < 0.0 {
        format!("{:.*}", decimals(-power), 10_f64.powf(power))
    } else {
        format!("{:.0}", 10_f64.powf(power))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive whole number"
)]
fn decimals(power: f64) -> usize {
    power as usize
}

impl Chart for Plot {
    fn draw(&self, frame: &Frame) -> Drawing {
        let axes = Axes::of(self, &frame.layout);
        let mut fixed = axes.draw();
        self.draw_dots(&axes, &mut fixed);
        self.draw_best(&axes, &mut fixed);
        self.draw_roofs(&axes, &mut fixed);
        self.draw_marks(&axes, &frame.layout, &mut fixed);
        Drawing {
            height: axes.height,
            fixed,
            legend: Legend::Entries(self.legend.clone()),
            ..Drawing::default()
        }
    }
}

impl Plot {
    /// Number of points outside the axes, which cover at most six powers of ten.
    pub fn outside(&self) -> usize {
        let axes = Axes::of(self, &Layout::SCREEN);
        let dots = self.dots.iter().map(|dot| (dot.intensity, dot.flops));
        let marks = self.marks.iter().map(|mark| (mark.intensity, mark.flops));
        dots.chain(marks)
            .filter(|(intensity, flops)| !axes.contain(*intensity, *flops))
            .count()
    }

    fn draw_roofs(&self, axes: &Axes, svg: &mut String) {
        let right = axes.right;
        let highest = |roofs: &[Roof]| roofs.iter().map(|roof| roof.per_second).reduce(f64::max);
        let (compute, memory) = (highest(&self.compute), highest(&self.memory));
        for roof in &self.memory {
            let top = compute.unwrap_or(f64::INFINITY);
            let Some((start, end)) = axes.slope(roof.per_second, top) else {
                continue;
            };
            let (x, y) = (axes.x(start), axes.y(start * roof.per_second));
            let (to_x, to_y) = (axes.x(end), axes.y(end * roof.per_second));
            let _ = write!(
                svg,
                "<path fill=\"none\" stroke=\"currentColor\" stroke-width=\"{}\" d=\"M{} {}L{} {}\"/>",
                if Some(roof.per_second) == memory {
                    1.8
                } else {
                    1.0
                },
                place(x),
                place(y),
                place(to_x),
                place(to_y),
            );
            let angle = (to_y - y).atan2(to_x - x).to_degrees();
            let (at_x, at_y) = (x + 0.06 * (to_x - x), y + 0.06 * (to_y - y));
            let _ = write!(
                svg,
                "<text class=\"lane halo\" x=\"{0}\" y=\"{1}\" dy=\"-5\" transform=\"rotate({2:.2} {0} {1})\">{3}</text>",
                place(at_x),
                place(at_y),
                angle,
                escaped(&roof.label)
            );
        }
        let mut roofs: Vec<_> = self.compute.iter().collect();
        roofs.sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
        let mut above = f64::NEG_INFINITY;
        for roof in roofs {
            let y = axes.y(roof.per_second);
            let start = memory.map_or(axes.left, |memory| {
                axes.x(roof.per_second / memory).max(axes.left)
            });
            let _ = write!(
                svg,
                "<path fill=\"none\" stroke=\"currentColor\" stroke-width=\"{}\" d=\"M{} {}H{right}\"/>",
                if Some(roof.per_second) == compute {
                    1.8
                } else {
                    1.0
                },
                place(start),
                place(y),
            );
            // Under the line, if the label of the one above it is in the way.
            let dy: f64 = if y - above < 1.6 * axes.text {
                1.1 * axes.text
            } else {
                -0.4 * axes.text
            };
            above = y + dy.max(0.0);
            let _ = write!(
                svg,
                "<text class=\"lane halo\" x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>",
                axes.right - 4.0,
                place(y + dy),
                escaped(&roof.label)
            );
        }
    }

    fn draw_best(&self, axes: &Axes, svg: &mut String) {
        let [flops, bandwidth] = self.best;
        let right = axes.right;
        let mut path = String::new();
        if let Some(flops) = flops {
            let start = bandwidth.map_or(axes.left, |bandwidth| {
                axes.x(flops / bandwidth).max(axes.left)
            });
            if start < axes.right {
                let _ = write!(path, "M{} {}H{right}", place(start), place(axes.y(flops)));
            }
        }
        if let Some(bandwidth) = bandwidth
            && let Some((start, end)) = axes.slope(bandwidth, flops.unwrap_or(f64::INFINITY))
        {
            let at = |x: f64| (place(axes.x(x)), place(axes.y(x * bandwidth)));
            let ((x, y), (to_x, to_y)) = (at(start), at(end));
            let _ = write!(path, "M{x} {y}L{to_x} {to_y}");
        }
        if !path.is_empty() {
            let _ = write!(
                svg,
                "<path fill=\"none\" stroke=\"currentColor\" stroke-width=\"1\" stroke-dasharray=\"1 3\" d=\"{path}\"/>"
            );
        }
    }

    /// Dots at the same place are one, with the latest time.
    fn draw_dots(&self, axes: &Axes, svg: &mut String) {
        let mut size = 1.5;
        let cells = loop {
            let mut cells: BTreeMap<(i64, i64), &Dot> = BTreeMap::new();
            let inside = self
                .dots
                .iter()
                .filter(|dot| axes.contain(dot.intensity, dot.flops));
            for dot in inside {
                let cell = |value: f64| whole(value / size);
                let key = (cell(axes.x(dot.intensity)), cell(axes.y(dot.flops)));
                cells.insert(key, dot);
            }
            if cells.len() <= DOTS {
                break cells;
            }
            size *= 1.5;
        };
        let mut dots: Vec<_> = cells.into_values().collect();
        dots.sort_by(|a, b| a.time.total_cmp(&b.time));
        for dot in dots {
            let shade = (dot.time.clamp(0.0, 1.0) * SHADES).ceil().max(1.0);
            let _ = write!(
                svg,
                "<circle class=\"h{shade}\" cx=\"{}\" cy=\"{}\" r=\"2\"/>",
                place(axes.x(dot.intensity)),
                place(axes.y(dot.flops))
            );
        }
    }

    fn draw_marks(&self, axes: &Axes, layout: &Layout, svg: &mut String) {
        let mut labels: Vec<(f64, f64, f64)> = Vec::new();
        for mark in &self.marks {
            if !axes.contain(mark.intensity, mark.flops) {
                continue;
            }
            let (x, y) = (axes.x(mark.intensity), axes.y(mark.flops));
            let label = escaped(&mark.label);
            let data = format!(
                "data-name=\"{label}\" data-intensity=\"{:e}\" data-flops=\"{:e}\" stroke=\"currentColor\" stroke-width=\".8\"",
                mark.intensity, mark.flops
            );
            let _ = match mark.shape {
                Shape::Diamond => write!(
                    svg,
                    "<path class=\"c5\" {data} d=\"M{} {}l6 6l-6 6l-6 -6Z\"/>",
                    place(x),
                    place(y - 6.0)
                ),
                Shape::Square => write!(
                    svg,
                    "<rect class=\"c7\" {data} x=\"{}\" y=\"{}\" width=\"7\" height=\"7\"/>",
                    place(x - 3.5),
                    place(y - 3.5)
                ),
                Shape::Circle(colour) => write!(
                    svg,
                    "<circle class=\"c{}\" {data} cx=\"{}\" cy=\"{}\" r=\"4.5\"/>",
                    colour % COLOURS,
                    place(x),
                    place(y)
                ),
            };
            let width = layout.width_of(&mark.label);
            if let Some((x, y, anchor)) = label_place(axes, x, y, width, &mut labels) {
                let _ = write!(
                    svg,
                    "<text class=\"lane halo\" x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\">{label}</text>",
                    place(x),
                    place(y)
                );
            }
        }
    }
}

/// A place for a label beside its mark that no other label has; `None` if there is none.
fn label_place(
    axes: &Axes,
    x: f64,
    y: f64,
    width: f64,
    taken: &mut Vec<(f64, f64, f64)>,
) -> Option<(f64, f64, &'static str)> {
    let places = [
        (9.0, 3.5),
        (9.0, 14.0),
        (9.0, -8.0),
        (-9.0, 3.5),
        (-9.0, 14.0),
        (-9.0, -8.0),
    ];
    let (left, y, x, anchor) = places.into_iter().find_map(|(dx, dy)| {
        let (left, anchor) = if dx > 0.0 {
            (x + dx, "start")
        } else {
            (x + dx - width, "end")
        };
        let y = y + dy;
        let is_free = taken
            .iter()
            .all(|(from, to, at)| left > *to || left + width < *from || (y - at).abs() > axes.text);
        let fits = left > axes.left
            && left + width < axes.right
            && y < axes.bottom
            && y > axes.top + 0.8 * axes.text;
        (is_free && fits).then_some((left, y, x + dx, anchor))
    })?;
    taken.push((left, left + width, y));
    Some((x, y, anchor))
}

#[expect(clippy::cast_possible_truncation, reason = "a place in a drawing")]
fn whole(value: f64) -> i64 {
    value as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::series::Span;

    #[test]
    fn ranges_have_only_numbers() {
        let values = [f64::INFINITY, 0.0, f64::NAN, f64::MAX];
        assert_eq!(range(values.into_iter(), 2.0), (307.0, 309.0));
        assert_eq!(range(values[..3].iter().copied(), 2.0), (0.0, LEAST));
    }

    fn roof(per_second: f64) -> Roof {
        Roof {
            per_second,
            label: "<roof>".to_owned(),
        }
    }

    fn mark(intensity: f64, flops: f64, shape: Shape) -> Mark {
        Mark {
            label: "a & b".to_owned(),
            intensity,
            flops,
            shape,
        }
    }

    fn drawn(plot: &Plot) -> String {
        let span = Span {
            start: 0,
            end: 1,
            intervals: 1,
        };
        plot.draw(&Frame {
            span,
            layout: Layout::SCREEN,
            bands: Vec::new(),
        })
        .fixed
    }

    #[test]
    fn a_point_on_the_roof_is_on_its_line() {
        // Half of the memory's roof, the ridge, and half of the compute roof.
        let marks = vec![
            mark(1.0, 1e10, Shape::Circle(0)),
            mark(4.0, 8e10, Shape::Circle(1)),
            mark(10.0, 4e10, Shape::Circle(2)),
        ];
        let plot = Plot {
            compute: vec![roof(8e10)],
            memory: vec![roof(2e10)],
            best: [None, None],
            dots: Vec::new(),
            marks,
            legend: Vec::new(),
        };
        let axes = Axes::of(&plot, &Layout::SCREEN);
        assert_eq!((axes.x, axes.y), ((0.0, 2.0), (10.0, 12.0)));
        // One power of ten is as long everywhere.
        let length = axes.x(10.0) - axes.x(1.0);
        assert!((axes.x(100.0) - axes.x(10.0) - length).abs() < 1e-9);
        let svg = drawn(&plot);
        let (start, end) = axes.slope(2e10, 8e10).expect("visible");
        assert!((start - 1.0).abs() < 1e-9 && (end - 4.0).abs() < 1e-9);
        // The flat line begins where the slope ends, and the mark at the ridge is there.
        let (x, y) = (place(axes.x(4.0)), place(axes.y(8e10)));
        assert!(svg.contains(&format!("M{x} {y}H")), "{svg}");
        assert!(svg.contains(&format!("L{x} {y}\"")), "{svg}");
        let circle = format!("cx=\"{x}\" cy=\"{y}\"");
        assert!(svg.contains(&circle), "{svg}");
        // Half of a roof is log10(2) of a power of ten under it.
        let below = axes.y(4e10) - axes.y(8e10);
        let power = axes.y(1e10) - axes.y(1e11);
        assert!((below / power - 2_f64.log10()).abs() < 1e-9);
        assert_eq!(plot.outside(), 0);
    }

    #[test]
    fn text_is_escaped_and_points_outside_are_counted() {
        let marks = vec![
            mark(1.0, 1e3, Shape::Diamond),
            mark(1.0, 1e11, Shape::Square),
        ];
        let dots = vec![Dot {
            intensity: 1.0,
            flops: 5e10,
            time: 1.0,
        }];
        let plot = Plot {
            compute: vec![roof(1e12)],
            memory: vec![roof(1e11)],
            best: [Some(5e10), Some(5e10)],
            dots,
            marks,
            legend: Vec::new(),
        };
        let svg = drawn(&plot);
        assert!(
            svg.contains("&lt;roof&gt;") && !svg.contains("<roof>"),
            "{svg}"
        );
        assert!(svg.contains("data-name=\"a &amp; b\""), "{svg}");
        assert!(
            svg.contains("stroke-dasharray") && svg.contains("class=\"h8\""),
            "{svg}"
        );
        // Nine powers of ten are not drawn.
        assert_eq!(plot.outside(), 1);
        assert!(!svg.contains("class=\"c5\""), "{svg}");
    }

    #[test]
    fn axes_have_whole_numbers() {
        assert_eq!(number(-2.0), "0.01");
        assert_eq!(number(0.0), "1");
        assert_eq!(number(3.0), "1000");
        assert_eq!(range([2.0, 3.0].into_iter(), 1.5), (-1.0, 1.0));
    }
}
