//! A page of facts and tables, as text for a terminal or as Markdown.

use std::fmt::Write as _;

use crate::support::log;

/// A page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    pub title: String,
    /// Lines under the title.
    pub subtitle: Vec<String>,
    /// A subject and what is known about it.
    pub facts: Vec<(&'static str, String)>,
    pub tables: Vec<PageTable>,
    /// What a reader has to know about the data.
    pub notes: Vec<String>,
}

/// A table. The last column is text, all others are numbers.
#[derive(Clone, Debug, Default)]
pub struct PageTable {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// What each row is about, for scripts; empty if they do not need it.
    pub subjects: Vec<String>,
    /// Rows that are left out.
    pub more: usize,
}

impl PageTable {
    /// A table without rows.
    pub fn new(columns: &[&str]) -> Self {
        Self {
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            ..Self::default()
        }
    }
}

impl PageTable {
    /// Removes the columns of numbers that are null in each row.
    pub fn remove_unknown(&mut self) {
        let last = self.columns.len().saturating_sub(1);
        let is_known =
            |column: usize| column == last || self.rows.iter().any(|row| row[column] != NULL);
        let known: Vec<bool> = (0..self.columns.len()).map(is_known).collect();
        let retain = |cells: &mut Vec<String>| {
            let mut known = known.iter();
            cells.retain(|_| *known.next().unwrap_or(&true));
        };
        retain(&mut self.columns);
        self.rows.iter_mut().for_each(retain);
    }
}

/// Shown for null.
pub const NULL: &str = "–";

impl Page {
    /// Text for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", log::escaped(&self.title));
        for line in &self.subtitle {
            let _ = writeln!(text, "{}", log::escaped(line));
        }
        let width = self
            .facts
            .iter()
            .map(|(name, _)| name.len())
            .max()
            .unwrap_or(0);
        if !self.facts.is_empty() {
            text.push('\n');
        }
        for (name, fact) in &self.facts {
            let _ = writeln!(text, "{name:width$}  {}", log::escaped(fact));
        }
        for table in &self.tables {
            text.push('\n');
            text += &table.text();
        }
        if !self.notes.is_empty() {
            text.push('\n');
        }
        for note in &self.notes {
            let _ = writeln!(text, "{}", log::escaped(note));
        }
        text
    }

    /// Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n", log::escaped(&self.title));
        for line in &self.subtitle {
            let _ = write!(text, "\n{}\n", log::escaped(line));
        }
        if !self.facts.is_empty() {
            text.push('\n');
        }
        for (name, fact) in &self.facts {
            let _ = writeln!(text, "- **{name}** {}", log::escaped(fact));
        }
        for table in &self.tables {
            text.push('\n');
            text += &table.markdown();
        }
        for note in &self.notes {
            let _ = write!(text, "\n> {}\n", log::escaped(note));
        }
        text
    }
}

/// Text in which nothing is Markdown or HTML.
pub fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in log::escaped(text).chars() {
        if r"\`*_[]<>|#~".contains(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

impl PageTable {
    fn text(&self) -> String {
        let cells = [&self.columns].into_iter().chain(&self.rows);
        let mut widths = vec![0; self.columns.len()];
        for row in cells.clone() {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(log::harmless(cell).chars().count());
            }
        }
        let mut text = String::new();
        for row in cells {
            let (last, numbers) = row
                .split_last()
                .map_or(("", &[][..]), |(last, numbers)| (last.as_str(), numbers));
            for (cell, width) in numbers.iter().zip(&widths) {
                let _ = write!(text, "{:>width$}  ", log::harmless(cell));
            }
            let _ = writeln!(text, "{}", log::harmless(last));
        }
        if self.more != 0 {
            let _ = writeln!(text, "… and {} more", self.more);
        }
        text
    }

    fn markdown(&self) -> String {
        let line = |cells: &mut dyn Iterator<Item = String>| {
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let mut text = line(&mut self.columns.iter().map(|cell| escaped(cell)));
        let last = self.columns.len().saturating_sub(1);
        let rule = |index| if index == last { "---" } else { "---:" };
        text += &line(&mut (0..self.columns.len()).map(|index| rule(index).to_owned()));
        for row in &self.rows {
            text += &line(&mut row.iter().map(|cell| escaped(cell)));
        }
        if self.more != 0 {
            let _ = write!(text, "\n… and {} more\n", self.more);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        let mut table = PageTable::new(&["CPU", "process"]);
        table
            .rows
            .push(vec!["1.2 s".to_owned(), "a\u{1b}[2J|b".to_owned()]);
        table
            .rows
            .push(vec!["12.0 s".to_owned(), "<script>".to_owned()]);
        table.more = 3;
        Page {
            title: "run".to_owned(),
            subtitle: vec!["62 s".to_owned()],
            facts: vec![
                ("time", "CPU 13.2 s".to_owned()),
                ("memory", NULL.to_owned()),
            ],
            tables: vec![table],
            notes: vec!["2 ticks lost".to_owned()],
        }
    }

    #[test]
    fn text_is_aligned_and_has_no_control_characters() {
        let expected = "run\n62 s\n\ntime    CPU 13.2 s\nmemory  –\n\n   CPU  process\n \
                        1.2 s  a\\u{1b}[2J|b\n12.0 s  <script>\n… and 3 more\n\n2 ticks lost\n";
        assert_eq!(page().text(), expected);
    }

    #[test]
    fn markdown_is_escaped() {
        let text = page().markdown();
        assert!(text.contains(r"| 1.2 s | a\\u{1b}\[2J\|b |"), "{text}");
        assert!(text.contains(r"\<script\>"), "{text}");
    }
}
