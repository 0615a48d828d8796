//! A report as Markdown: verdict, facts, tables, and links to the drawings.

use std::{fmt::Write as _, path::PathBuf};

use super::Report;
use crate::analysis::{
    page::escaped,
    summary::{findings, page},
};

/// All runs. `pictures` are titles and paths of the drawings of each run.
pub fn markdown(reports: &[Report], pictures: &[Vec<(String, PathBuf)>]) -> String {
    let mut text = String::new();
    for (number, report) in reports.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        text += &page(&report.summary).markdown();
        let found = findings(&report.summary);
        if !found.is_empty() {
            text += "\n## Recommendations\n\n";
        }
        for finding in found {
            let _ = writeln!(
                text,
                "- **{}** {} {} ({})",
                finding.name,
                escaped(&finding.text),
                escaped(finding.hint),
                escaped(finding.rule)
            );
        }
        for (title, path) in pictures.get(number).into_iter().flatten() {
            let _ = write!(text, "\n![{}](<{}>)\n", escaped(title), path.display());
        }
    }
    text
}
