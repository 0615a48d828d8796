//! The plot of docs/overhead.md: the slowdown of workloads by several tools, as bars.

use std::fmt::Write as _;

/// Slowdown by a tool.
#[derive(Clone, Debug)]
pub struct Bar {
    pub tool: String,
    /// Median ratio, with its confidence interval.
    pub ratio: f64,
    pub low: f64,
    pub high: f64,
}

/// Workload, and its bars.
pub type Group = (String, Vec<Bar>);

const WIDTH: f64 = 720.0;
/// Space for the names of the tools.
const LEFT: f64 = 190.0;
/// Space for the values.
const RIGHT: f64 = 60.0;
const ROW: f64 = 20.0;
const HEADING: f64 = 34.0;
const STYLE: &str = "\
    text{font:13px sans-serif;fill:#222}.h{font-weight:600}.a{fill:#666;font-size:12px}\
    .own{fill:#0072b2}.other{fill:#999}line{stroke:#222;stroke-width:1}.g{stroke:#ddd}.w{fill:#fff}\
    @media(prefers-color-scheme:dark){text{fill:#ddd}.a{fill:#aaa}line{stroke:#ddd}.g{stroke:#444}\
    .w{fill:#111}}";

/// The plot as SVG.
pub fn svg(groups: &[Group]) -> String {
    let bars = groups.iter().flat_map(|(_, bars)| bars);
    let most = bars.fold(1.1_f64, |most, bar| most.max(bar.high)) - 1.0;
    // Tenths that cover the largest value.
    let tenths = (most * 10.0).ceil().max(1.0);
    let scale = |ratio: f64| LEFT + (ratio - 1.0).max(0.0) * 10.0 / tenths * (WIDTH - LEFT - RIGHT);
    let rows: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
    let height = rows as f64 * ROW + groups.len() as f64 * HEADING + 40.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"Slowdown of workloads by several tools\">\n<style>{STYLE}</style>\n\
         <rect class=\"w\" width=\"{WIDTH}\" height=\"{height}\"/>\n"
    );
    let step = (tenths / 5.0).ceil();
    let mut tenth = 0.0;
    while tenth <= tenths {
        let ratio = 1.0 + tenth / 10.0;
        let (x, bottom) = (scale(ratio), height - 30.0);
        let _ = writeln!(
            text,
            "<line class=\"g\" x1=\"{x:.1}\" y1=\"8\" x2=\"{x:.1}\" y2=\"{bottom}\"/>\
             <text class=\"a\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">×{ratio:.1}</text>",
            bottom + 18.0
        );
        tenth += step;
    }
    let mut y = 8.0;
    for (workload, bars) in groups {
        let workload = escaped(workload);
        let _ = writeln!(
            text,
            "<text class=\"h\" x=\"8\" y=\"{}\">{workload}</text>",
            y + 18.0
        );
        y += HEADING - 8.0;
        for bar in bars {
            let class = if bar.tool.starts_with("profiler") {
                "own"
            } else {
                "other"
            };
            let middle = y + ROW / 2.0;
            let _ = writeln!(
                text,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
                 <rect class=\"{class}\" x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"{}\"/>\
                 <line x1=\"{:.1}\" y1=\"{middle}\" x2=\"{:.1}\" y2=\"{middle}\"/>\
                 <text x=\"{:.1}\" y=\"{}\">×{:.2}</text>",
                LEFT - 8.0,
                middle + 4.0,
                escaped(&bar.tool),
                y + 3.0,
                scale(bar.ratio) - LEFT,
                ROW - 6.0,
                scale(bar.low),
                scale(bar.high),
                scale(bar.high.max(bar.ratio)) + 6.0,
                middle + 4.0,
                bar.ratio,
            );
            y += ROW;
        }
        y += 8.0;
    }
    text.push_str("</svg>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_the_ratio_exceeds_one() {
        let bar = |tool: &str, ratio| Bar {
            tool: tool.to_owned(),
            ratio,
            low: ratio,
            high: ratio,
        };
        let bars = vec![
            bar("profiler <x>", 1.1),
            bar("other", 1.4),
            bar("none", 0.9),
        ];
        let text = svg(&[("pipe".to_owned(), bars)]);
        // Four tenths are as wide as the plot.
        for width in ["117.5", "470.0", "0.0"] {
            assert!(text.contains(&format!("width=\"{width}\"")), "{text}");
        }
        assert!(text.contains("profiler &lt;x>") && text.contains(">pipe<"));
        assert!(text.contains("×1.40") && text.contains(">×1.4<"));
    }
}
