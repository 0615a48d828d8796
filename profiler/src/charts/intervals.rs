//! Ratios with their confidence intervals on a logarithmic axis.

use std::fmt::Write as _;

use super::{escaped, place};

/// A ratio.
#[derive(Clone, Debug)]
pub struct Ratio {
    pub label: String,
    /// Text at the right edge.
    pub note: String,
    pub value: f64,
    pub interval: Option<(f64, f64)>,
    /// Number of its colour; `None` for one that is not significant.
    pub colour: Option<usize>,
}

const ROW: f64 = 22.0;
const WIDTH: f64 = 760.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 34.0;
/// Space for labels and for notes.
const LEFT: f64 = 250.0;
const RIGHT: f64 = 190.0;
/// The axis shows at least this factor in both directions.
const LEAST_RANGE: f64 = 1.05;
/// Values beyond this factor are drawn at the edge.
const MOST_RANGE: f64 = 100.0;

/// Factors with labels: for axes within 0.1 to 10, and for others.
const NEAR: [f64; 11] = [0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0];
const FACTORS: [f64; 13] = [
    0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0,
];
const TENS: [f64; 5] = [0.01, 0.1, 1.0, 10.0, 100.0];

/// The axis: the logarithms of its ends.
#[derive(Clone, Copy)]
struct Axis {
    low: f64,
    high: f64,
}

impl Axis {
    fn of(ratios: &[Ratio]) -> Self {
        let ends = ratios.iter().flat_map(|ratio| {
            let (low, high) = ratio.interval.unwrap_or((ratio.value, ratio.value));
            [low, high, ratio.value]
        });
        let limit = MOST_RANGE.ln();
        let (mut low, mut high) = (-LEAST_RANGE.ln(), LEAST_RANGE.ln());
        for end in ends.map(f64::ln).filter(|end| !end.is_nan()) {
            low = low.min(end.max(-limit));
            high = high.max(end.min(limit));
        }
        let margin = 0.04 * (high - low);
        Self {
            low: low - margin,
            high: high + margin,
        }
    }

    fn x(self, value: f64) -> f64 {
        let position = (value.ln() - self.low) / (self.high - self.low);
        LEFT + (WIDTH - LEFT - RIGHT) * position.clamp(0.0, 1.0)
    }

    /// Round ratios, at most seven of them.
    fn ticks(self) -> Vec<f64> {
        // Steps of percent near 1, and factors beyond.
        for step in [0.01, 0.02, 0.05, 0.1, 0.2, 0.25] {
            let (first, last) = ((self.low.exp() / step).ceil(), self.high.exp() / step);
            if last - first <= 6.0 {
                let steps = (0..=6).map(|number| (first + f64::from(number)) * step);
                return steps
                    .filter(|tick| *tick > 0.0 && tick.ln() <= self.high)
                    .collect();
            }
        }
        let inside = |ticks: &[f64]| -> Vec<f64> {
            let inside = |tick: &f64| tick.ln() >= self.low && tick.ln() <= self.high;
            ticks.iter().copied().filter(inside).collect()
        };
        let is_near = self.low >= 0.1_f64.ln() && self.high <= 10.0_f64.ln();
        let choices = [inside(&NEAR), inside(&FACTORS)];
        let mut choices = choices.into_iter().skip(usize::from(!is_near));
        let few = choices.find(|ticks| ticks.len() <= 7);
        few.unwrap_or_else(|| inside(&TENS))
    }
}

/// Draws ratios from the top.
pub fn draw(title: &str, ratios: &[Ratio]) -> String {
    let axis = Axis::of(ratios);
    let height = TOP + ROW * ratios.len() as f64 + BOTTOM;
    let bottom = height - BOTTOM;
    let mut svg = format!(
        "<svg class=\"ratios\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
        escaped(title)
    );
    for tick in axis.ticks() {
        let x = place(axis.x(tick));
        let label = format!("{tick:.2}");
        let label = label.trim_end_matches('0').trim_end_matches('.');
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{x}\" x2=\"{x}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text class=\"tick\" x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
            bottom + 13.0,
        );
    }
    let one = place(axis.x(1.0));
    let _ = write!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{bottom}\" y2=\"{bottom}\"/>\
         <line class=\"one\" x1=\"{one}\" x2=\"{one}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
         <text class=\"tick\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">B / A</text>",
        WIDTH - RIGHT,
        place(f64::midpoint(LEFT, WIDTH - RIGHT)),
        bottom + 27.0,
    );
    for (number, ratio) in ratios.iter().enumerate() {
        let y = TOP + ROW * (number as f64 + 0.5);
        let colour = ratio.colour.map_or("none".to_owned(), |of| of.to_string());
        let _ = write!(
            svg,
            "<text class=\"lane\" x=\"{}\" y=\"{y}\" dy=\"3.5\" text-anchor=\"end\">{}</text>",
            LEFT - 12.0,
            escaped(&ratio.label),
        );
        if let Some((low, high)) = ratio.interval {
            let (low, high) = (place(axis.x(low)), place(axis.x(high)));
            let (above, below) = (y - 4.0, y + 4.0);
            let _ = write!(
                svg,
                "<path class=\"whisker s{colour}\" d=\"M{low} {above}V{below}M{low} {y}H{high}M{high} \
                 {above}V{below}\"/>"
            );
        }
        let _ = write!(
            svg,
            "<circle class=\"dot c{colour}\" cx=\"{}\" cy=\"{y}\" r=\"4\"/>\
             <text class=\"tick\" x=\"{}\" y=\"{y}\" dy=\"3.5\">{}</text>",
            place(axis.x(ratio.value)),
            WIDTH - RIGHT + 14.0,
            escaped(&ratio.note),
        );
    }
    svg + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(value: f64, interval: Option<(f64, f64)>) -> Ratio {
        Ratio {
            label: "<b>".to_owned(),
            note: "+5 %".to_owned(),
            value,
            interval,
            colour: None,
        }
    }

    #[test]
    fn axis_is_logarithmic_and_marks_one() {
        let axis = Axis::of(&[ratio(2.0, None), ratio(0.5, None)]);
        let one = axis.x(1.0);
        assert!((axis.x(2.0) - one - (one - axis.x(0.5))).abs() < 1e-9);
        assert!(axis.ticks().contains(&1.0), "{:?}", axis.ticks());
        let near = Axis::of(&[ratio(1.05, Some((1.04, 1.06)))]);
        let ticks = near.ticks();
        let has_one = ticks.iter().any(|tick| (tick - 1.0).abs() < 1e-9);
        assert!(has_one && (3..=7).contains(&ticks.len()), "{ticks:?}");
    }

    #[test]
    fn all_ratios_are_inside_and_text_is_escaped() {
        let drawn = draw(
            "a",
            &[ratio(1e9, Some((0.0, f64::INFINITY))), ratio(1.0, None)],
        );
        assert!(
            !drawn.contains("<b>") && drawn.contains("&lt;b&gt;"),
            "{drawn}"
        );
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
        assert_eq!(drawn.matches("<circle").count(), 2);
        assert_eq!(drawn.matches("whisker").count(), 1);
    }
}
