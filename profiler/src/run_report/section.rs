//! What a report consists of, before it is known how it is shown.

use crate::charts::Chart;

/// A section.
pub struct Section {
    pub id: &'static str,
    pub title: &'static str,
    pub parts: Vec<Part>,
}

/// Part of a section.
pub enum Part {
    Html(String),
    Picture(Picture),
}

/// A drawing.
pub struct Picture {
    /// Name, unique in the report.
    pub name: String,
    pub title: String,
    pub chart: Box<dyn Chart>,
    /// Queries for its values.
    pub sql: Vec<String>,
}

impl Section {
    /// A section, unless it is empty.
    pub fn new(id: &'static str, title: &'static str, parts: Vec<Part>) -> Option<Self> {
        (!parts.is_empty()).then_some(Self { id, title, parts })
    }

    /// A section of text, unless it is empty.
    pub fn of_text(id: &'static str, title: &'static str, html: String) -> Option<Self> {
        let parts = if html.is_empty() {
            Vec::new()
        } else {
            vec![Part::Html(html)]
        };
        Self::new(id, title, parts)
    }

    /// The drawings.
    pub fn pictures(&self) -> impl Iterator<Item = &Picture> {
        self.parts.iter().filter_map(|part| match part {
            Part::Picture(figure) => Some(figure),
            Part::Html(_) => None,
        })
    }
}

impl Picture {
    /// A figure of a chart without queries.
    pub fn new(name: &str, title: &str, chart: impl Chart + 'static) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            chart: Box::new(chart),
            sql: Vec::new(),
        }
    }
}
