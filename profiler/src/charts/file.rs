//! A drawing as an SVG file for papers and slides.

use std::fmt::Write as _;

use super::{Chart, Frame, Layout, STYLE, escaped};

/// Appearance of a file.
#[derive(Clone, Debug)]
pub struct Appearance {
    pub layout: Layout,
    /// Font families, in the order of preference.
    pub font: String,
    /// Whether the title is above the drawing.
    pub with_title: bool,
}

/// Font families of files: first a common one without serifs, last the one that PNG files use if
/// there is no other.
pub const FONT: &str = "Helvetica, Arial, 'DejaVu Sans', sans-serif";

/// CSS pixels of a length in mm.
pub fn pixels(mm: f64) -> f64 {
    mm * 96.0 / 25.4
}

/// CSS pixels of a size of letters in points.
pub fn points(points: f64) -> f64 {
    points * 96.0 / 72.0
}

/// The file, with a style sheet of its own.
pub fn svg(chart: &dyn Chart, title: &str, frame: &Frame, appearance: &Appearance) -> String {
    let element = element(chart, title, frame, appearance);
    // The style sheet comes first in the element.
    let (open, content) = element.split_once('>').unwrap_or((&element, ""));
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n{open}><style>{}</style>{content}\n",
        style(appearance)
    )
}

/// The SVG element with title and legend, to which a style sheet belongs.
pub fn element(chart: &dyn Chart, title: &str, frame: &Frame, appearance: &Appearance) -> String {
    let layout = appearance.layout;
    let frame = Frame {
        layout,
        ..frame.clone()
    };
    let drawing = chart.draw(&frame);
    let mut above = 0.4 * layout.text;
    let mut heading = String::new();
    if appearance.with_title {
        above = 0.6 * layout.text;
        for line in wrapped(title, layout.inner(), &layout) {
            above += 1.3 * layout.text;
            let _ = write!(
                heading,
                "<text class=\"title\" x=\"{}\" y=\"{:.1}\">{}</text>",
                layout.left(),
                above,
                escaped(&line)
            );
        }
        above += 0.4 * layout.text;
    }
    let bottom = above + drawing.height;
    let (legend, rows) = drawing.legend.svg(&layout, bottom);
    let (width, height) = (layout.width, bottom + rows + 0.3 * layout.text);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.1}\" height=\"{height:.1}\" \
         viewBox=\"0 0 {width:.1} {height:.1}\" role=\"img\" aria-label=\"{}\"><title>{}</title>\
         <rect class=\"paper\" width=\"{width:.1}\" height=\"{height:.1}\"/>\
         {heading}<g transform=\"translate(0 {above:.1})\">{}</g>{legend}</svg>",
        escaped(title),
        escaped(title),
        drawing.content(&layout),
    )
}

/// Text in lines of at most this width.
fn wrapped(text: &str, width: f64, layout: &Layout) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let Some(line) = lines.last_mut() else { break };
        let longer = format!("{line} {word}");
        // Titles are bold.
        if line.is_empty() || 1.15 * layout.width_of(&longer) < width {
            longer.trim().clone_into(line);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// The style sheet of drawings in the light palette. Programs that read SVG files know no variables.
fn style(appearance: &Appearance) -> String {
    let palette = STYLE.split_once('}').map_or(STYLE, |(palette, _)| palette);
    let mut style = STYLE
        .split_once("/* drawings */")
        .map_or(STYLE, |(_, style)| style)
        .to_owned();
    for declaration in palette.split(';') {
        if let Some((name, value)) = declaration.split_once(':')
            && let Some(at) = name.find("--")
        {
            let name = name[at..].trim();
            style = style.replace(&format!("var({name})"), value.trim());
        }
    }
    let size = appearance.layout.text;
    style = style
        .replace("font-size: 10px", &format!("font-size: {size:.2}px"))
        .replace(
            "font-family: system-ui, sans-serif",
            &format!("font-family: {}", appearance.font),
        );
    style + &title_style(appearance)
}

/// The style of titles.
pub fn title_style(appearance: &Appearance) -> String {
    let (size, font) = (appearance.layout.text, &appearance.font);
    format!(".title {{ font-size: {size:.2}px; font-family: {font}; }}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_of_files_has_no_variables() {
        let style = style(&Appearance {
            layout: Layout::SCREEN,
            font: "Inter".to_owned(),
            with_title: true,
        });
        assert!(!style.contains("var("), "{style}");
        assert!(style.contains(".c0 { fill: #0072b2; }"), "{style}");
        assert!(style.contains("font-family: Inter"), "{style}");
    }

    #[test]
    fn titles_are_wrapped() {
        let lines = wrapped("one two three", 50.0, &Layout::SCREEN);
        assert_eq!(lines, ["one two", "three"]);
    }
}
