//! `cargo xtask lint`: spelling, and terms that the project no longer uses.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use regex::{Regex, RegexBuilder};

use crate::{python, shell, workspace::Workspace};

/// A regular expression, a tab and the term to use instead, in each line.
const TERMS: &str = "xtask/retired-terms.txt";

/// A term that must not be used.
struct Retired {
    pattern: Regex,
    instead: String,
}

/// Checks all text files of the repository.
pub fn run(workspace: &Workspace) -> Result<()> {
    let typos = python::obtain(workspace)?.with_file_name("typos");
    let typos = || {
        let mut command = Command::new(&typos);
        command.current_dir(&workspace.root);
        command
    };
    shell::run(&mut typos())?;
    let terms = fs::read_to_string(workspace.root.join(TERMS)).context(TERMS)?;
    let terms = parse(&terms)?;
    let files = shell::stdout(typos().arg("--files"))?;
    let mut found = Vec::new();
    for file in files.lines().map(|file| file.trim_start_matches("./")) {
        // Binary files have no terms.
        if file != TERMS
            && let Ok(text) = fs::read_to_string(workspace.root.join(file))
        {
            found.extend(uses(&terms, Path::new(file), &text));
        }
    }
    ensure!(found.is_empty(), "retired terms:\n{}", found.join("\n"));
    Ok(())
}

fn parse(text: &str) -> Result<Vec<Retired>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (pattern, instead) = line.split_once('\t').context(line.to_owned())?;
            Ok(Retired {
                // `\b` of ASCII: the crate is built without Unicode tables.
                pattern: RegexBuilder::new(pattern).unicode(false).build()?,
                instead: instead.to_owned(),
            })
        })
        .collect()
}

/// Lines of a file with retired terms, as `FILE:LINE: TERM: use INSTEAD`.
fn uses(terms: &[Retired], file: &Path, text: &str) -> Vec<String> {
    let lines = text.lines().zip(1..);
    lines
        .flat_map(|(line, number)| {
            terms.iter().filter_map(move |retired| {
                let term = retired.pattern.find(line)?.as_str();
                let instead = &retired.instead;
                Some(format!(
                    "{}:{number}: {term}: use {instead}",
                    file.display()
                ))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retired_terms_are_found_with_line_and_replacement() {
        let terms = parse("# comment\n\\bold word\\b\tnew word\n").expect("terms");
        let text = "one\nan old word\nolder words\n";
        assert_eq!(
            uses(&terms, Path::new("a.md"), text),
            ["a.md:2: old word: use new word"]
        );
    }

    #[test]
    fn every_line_of_the_list_is_valid() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("retired-terms.txt");
        let terms = fs::read_to_string(path).expect("the list");
        assert!(!parse(&terms).expect("regular expressions").is_empty());
    }
}
