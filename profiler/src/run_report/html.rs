//! The HTML of a report.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};

use crate::{
    analysis::{
        page::PageTable,
        series::Span,
        summary::{self, Summary},
    },
    charts::escaped,
};

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// A section.
pub struct Section {
    pub id: &'static str,
    pub title: &'static str,
    pub html: String,
}

impl Section {
    /// A section, unless it is empty.
    pub fn new(id: &'static str, title: &'static str, html: String) -> Option<Self> {
        (!html.is_empty()).then_some(Self { id, title, html })
    }
}

/// A paragraph of text.
pub fn paragraph(text: &str) -> String {
    format!("<p>{}</p>", escaped(text))
}

/// Facts as a list.
pub fn facts(facts: &[(&str, String)]) -> String {
    let mut html = String::from("<dl>");
    for (name, fact) in facts {
        let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(fact));
    }
    html + "</dl>"
}

/// A table.
pub fn table(table: &PageTable) -> String {
    let row = |cells: &[String], tag: &str| {
        let cells = cells
            .iter()
            .map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
        let cells = cells.collect::<Vec<_>>().concat();
        format!("<tr>{cells}</tr>")
    };
    let rows: String = table.rows.iter().map(|cells| row(cells, "td")).collect();
    let more = if table.more == 0 {
        String::new()
    } else {
        format!("<p class=\"more\">… and {} more</p>", table.more)
    };
    format!(
        "<div class=\"scroll\"><table><thead>{}</thead><tbody>{rows}</tbody></table></div>{more}",
        row(&table.columns, "th")
    )
}

/// What a document has besides its sections.
pub struct Frame {
    pub title: String,
    pub subtitle: Vec<String>,
    /// Attributes of the body.
    pub attributes: String,
    /// Rules of this kind of document, after those that all have.
    pub style: &'static str,
    /// `None` for a document without scripts.
    pub script: Option<&'static str>,
    pub footer: &'static str,
}

impl Frame {
    /// That of the report of a run.
    pub fn of_run(summary: &Summary, span: &Span) -> Self {
        let page = summary::page(summary);
        let seconds = (span.end - span.start) as f64 / 1e6;
        Self {
            title: page.title,
            subtitle: page.subtitle,
            attributes: format!(
                " data-seconds=\"{seconds}\" data-intervals=\"{}\"",
                span.intervals
            ),
            style: "",
            script: Some(SCRIPT),
            footer: "times since the start of the run",
        }
    }
}

/// The document. Its policy forbids every request, and every style sheet and script but its own.
pub fn page(frame: &Frame, sections: &[Section]) -> String {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
    let style = format!("{STYLE}{}", frame.style);
    let mut policy = format!("default-src 'none'; style-src 'sha256-{}'", hash(&style));
    if let Some(script) = frame.script {
        let _ = write!(policy, "; script-src 'sha256-{}'", hash(script));
    }
    let title = escaped(&frame.title);
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title}</title><style>{style}</style></head><body{}><header><h1>{title}</h1>",
        frame.attributes,
    );
    for line in &frame.subtitle {
        html += &paragraph(line);
    }
    html += "</header><nav aria-label=\"Sections\"><ul>";
    for section in sections {
        let _ = write!(
            html,
            "<li><a href=\"#{}\">{}</a></li>",
            section.id,
            escaped(section.title)
        );
    }
    html += "</ul></nav><main>";
    for section in sections {
        let _ = write!(
            html,
            "<section id=\"{}\"><h2>{}</h2>{}</section>",
            section.id,
            escaped(section.title),
            section.html
        );
    }
    let script = frame
        .script
        .map(|script| format!("<script>{script}</script>"));
    let _ = writeln!(
        html,
        "</main><footer>profiler {} · {}</footer>{}</body></html>",
        env!("CARGO_PKG_VERSION"),
        frame.footer,
        script.unwrap_or_default()
    );
    html
}
