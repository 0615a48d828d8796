//! The HTML of reports.

use std::fmt::Write as _;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};

use super::{
    Report,
    section::{Part, Section},
};
use crate::{
    analysis::{page::PageTable, summary},
    charts::{self, Frame, escaped},
};

const SCRIPT: &str = include_str!("script.js");

/// A paragraph of text.
pub fn paragraph(text: &str) -> String {
    format!("<p>{}</p>", escaped(text))
}

/// Facts as a list; nothing if there are none.
pub fn facts(facts: &[(&str, String)]) -> String {
    if facts.is_empty() {
        return String::new();
    }
    let mut html = String::from("<dl>");
    for (name, fact) in facts {
        let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", escaped(name), escaped(fact));
    }
    html + "</dl>"
}

/// A table.
pub fn table(table: &PageTable) -> String {
    let row = |cells: &[String], tag: &str, subject: Option<&String>| {
        let cells = cells
            .iter()
            .map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
        let cells = cells.collect::<Vec<_>>().concat();
        let subject = subject.map_or(String::new(), |subject| {
            format!(" data-subject=\"{}\"", escaped(subject))
        });
        format!("<tr{subject}>{cells}</tr>")
    };
    let rows = table.rows.iter().enumerate();
    let rows: String = rows
        .map(|(number, cells)| row(cells, "td", table.subjects.get(number)))
        .collect();
    let more = if table.more == 0 {
        String::new()
    } else {
        format!("<p class=\"more\">… and {} more</p>", table.more)
    };
    format!(
        "<div class=\"scroll\"><table><thead>{}</thead><tbody>{rows}</tbody></table></div>{more}",
        row(&table.columns, "th", None)
    )
}

/// A drawing with its title and the queries for its values. Names of elements begin with `prefix`.
pub fn figure(prefix: &str, name: &str, title: &str, drawing: &str, sql: &[String]) -> String {
    let sql: Vec<_> = sql.iter().map(|sql| escaped(sql)).collect();
    let source = if sql.is_empty() {
        String::new()
    } else {
        format!(
            "<details><summary>SQL</summary><pre>{}</pre></details>",
            sql.join(";\n")
        )
    };
    format!(
        "<figure id=\"{prefix}plot-{}\"><figcaption>{}</figcaption>{drawing}{source}</figure>",
        escaped(name),
        escaped(title)
    )
}

fn section(section: &Section, prefix: &str, frame: &Frame) -> String {
    let parts = section.parts.iter().map(|part| match part {
        Part::Html(html) => html.clone(),
        Part::Picture(of) => {
            let drawing = of.chart.draw(frame).html(&frame.layout, &of.title);
            figure(prefix, &of.name, &of.title, &drawing, &of.sql)
        }
    });
    format!(
        "<section id=\"{prefix}{}\"><h2>{}</h2>{}</section>",
        section.id,
        escaped(section.title),
        parts.collect::<String>()
    )
}

/// Title, links to the sections, and the sections. Names of elements begin with `prefix`.
pub fn content(
    title: &str,
    subtitle: &[String],
    sections: &[Section],
    prefix: &str,
    frame: &Frame,
) -> String {
    let mut html = format!("<header><h1>{}</h1>", escaped(title));
    for line in subtitle {
        html += &paragraph(line);
    }
    html += "</header><nav aria-label=\"Sections\"><ul>";
    for section in sections {
        let _ = write!(
            html,
            "<li><a href=\"#{prefix}{}\">{}</a></li>",
            section.id,
            escaped(section.title)
        );
    }
    html += "</ul></nav>";
    let sections = sections.iter().map(|of| section(of, prefix, frame));
    html + &sections.collect::<String>()
}

fn article(report: &Report, prefix: &str) -> String {
    let page = summary::page(&report.summary);
    let frame = &report.frame;
    // `<` would end the element.
    let subjects = report.subjects.replace('<', "\\u003c");
    format!(
        "<article data-start=\"{}\" data-seconds=\"{}\" data-intervals=\"{}\">{}\
         <script type=\"application/json\" class=\"subjects\">{subjects}</script></article>",
        frame.span.start,
        (frame.span.end - frame.span.start) as f64 / 1e6,
        frame.span.intervals,
        content(&page.title, &page.subtitle, &report.sections, prefix, frame),
    )
}

/// One row for each run, with a link to it.
fn overview(reports: &[Report]) -> String {
    let mut rows = String::new();
    for (number, report) in reports.iter().enumerate() {
        let page = summary::page(&report.summary);
        let fact = |wanted: &str| {
            let fact = page.facts.iter().find(|(name, _)| *name == wanted);
            escaped(fact.map_or("–", |(_, fact)| fact))
        };
        let _ = write!(
            rows,
            "<tr><td><a href=\"#{}verdict\">{}</a></td><td>{}</td><td>{}</td></tr>",
            prefix(number, reports.len()),
            escaped(&page.title),
            page.subtitle
                .first()
                .map_or(String::new(), |line| escaped(line)),
            fact(summary::BOUND),
        );
    }
    format!(
        "<h1>{} runs</h1><div class=\"scroll overview\"><table><thead><tr><th>run</th><th>time</th>\
         <th>bound by</th></tr></thead><tbody>{rows}</tbody></table></div>",
        reports.len()
    )
}

/// What names of elements of a run begin with.
fn prefix(number: usize, runs: usize) -> String {
    if runs == 1 {
        String::new()
    } else {
        format!("run{}-", number + 1)
    }
}

/// The report of all runs as one file.
pub fn page(reports: &[Report]) -> String {
    let (title, mut body) = match reports {
        [only] => (summary::page(&only.summary).title, String::new()),
        _ => (format!("{} runs", reports.len()), overview(reports)),
    };
    for (number, report) in reports.iter().enumerate() {
        body += &article(report, &prefix(number, reports.len()));
    }
    Document {
        title,
        body,
        style: "",
        is_interactive: true,
        footer: "times since the start of the run",
    }
    .html()
}

/// A document.
pub struct Document<'a> {
    pub title: String,
    pub body: String,
    /// Rules of this kind of document, after those that all have.
    pub style: &'a str,
    /// Whether it has the script of reports.
    pub is_interactive: bool,
    pub footer: &'static str,
}

impl Document<'_> {
    /// The file. Its policy forbids every request, and every style sheet and script but its own.
    pub fn html(&self) -> String {
        let hash = |text: &str| STANDARD.encode(Sha256::digest(text));
        let style = format!(
            "{}{}{}",
            charts::STYLE,
            include_str!("style.css"),
            self.style
        );
        let mut policy = format!("default-src 'none'; style-src 'sha256-{}'", hash(&style));
        let mut script = String::new();
        if self.is_interactive {
            let _ = write!(policy, "; script-src 'sha256-{}'", hash(SCRIPT));
            script = format!("<script>{SCRIPT}</script>");
        }
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta name=\"generator\" content=\"profiler\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\">\
             <title>{}</title><style>{style}</style></head><body><main>{}</main>\
             <footer>profiler {} · {}</footer>{script}</body></html>\n",
            escaped(&self.title),
            self.body,
            env!("CARGO_PKG_VERSION"),
            self.footer,
        )
    }
}
