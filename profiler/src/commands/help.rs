//! The help of the program: its subcommands in groups, one line each.

use std::fmt::Write as _;

use clap::Command;

/// Headings and the subcommands below each, in the order of their use.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Record", &["run", "serve", "mark", "status"]),
    ("Analyse", &["summary", "report", "compare"]),
    (
        "Data",
        &["export", "import", "verify", "recover", "compact", "upload"],
    ),
    ("Machine", &["check", "events", "ceilings", "config"]),
    ("Reference", &["schema", "completions", "man"]),
];

/// The commands of the first hour.
const FIRST: [(&str, &str); 3] = [
    ("profiler check", "what works on this machine"),
    (
        "profiler run -- COMMAND",
        "profile a command; or --pid, --job, --node",
    ),
    ("profiler summary", "where the time of the newest run went"),
];

const OPTIONS: &str = "\
Options:
  -h, --help     Print help; `profiler COMMAND --help` prints that of a command
  -V, --version  Print version; --version also prints the build";

/// Replaces clap's help, which cannot group subcommands.
pub fn grouped(program: Command) -> Command {
    let help = overview(&program);
    program.override_help(help)
}

fn overview(program: &Command) -> String {
    let about = |command: &Command| command.get_about().map(ToString::to_string);
    let mut text = about(program).unwrap_or_default();
    text.push_str("\n\nUsage: profiler COMMAND\n\nFirst steps:\n");
    let width = FIRST.iter().map(|(command, _)| command.len()).max();
    let width = width.unwrap_or_default();
    for (command, what) in FIRST {
        let _ = writeln!(text, "  {command:width$}  {what}");
    }
    let names = GROUPS.iter().flat_map(|(_, names)| *names);
    let width = names.map(|name| name.len()).max().unwrap_or_default();
    for (heading, names) in GROUPS {
        let _ = write!(text, "\n{heading}:\n");
        for command in names
            .iter()
            .filter_map(|name| program.find_subcommand(name))
        {
            let about = about(command).unwrap_or_default();
            let _ = writeln!(text, "  {:width$}  {about}", command.get_name());
        }
    }
    let _ = write!(text, "\n{OPTIONS}\n");
    if let Some(after) = program.get_after_help() {
        let _ = write!(text, "\n{after}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn every_subcommand_is_in_one_group() {
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for name in GROUPS.iter().flat_map(|(_, names)| *names) {
            *counts.entry(name).or_default() += 1;
        }
        let program = Cli::command();
        let expected = program.get_subcommands().filter(|one| !one.is_hide_set());
        let expected: BTreeMap<&str, u32> = expected.map(|one| (one.get_name(), 1)).collect();
        assert_eq!(counts, expected);
    }

    #[test]
    fn overview_has_80_columns_and_all_abouts() {
        let program = Cli::command();
        let text = overview(&program);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for command in program.get_subcommands() {
            let about = command.get_about().expect("an about").to_string();
            let line = text
                .lines()
                .find(|line| line.trim_start().starts_with(command.get_name()));
            assert!(line.is_some_and(|line| line.ends_with(&about)), "{about}");
        }
    }

    #[test]
    fn every_form_of_the_help_is_the_same() {
        let shown = |words: &[&str]| {
            let words = ["profiler"].iter().chain(words);
            let error = grouped(Cli::command()).try_get_matches_from(words);
            error.expect_err("a help").to_string()
        };
        let help = shown(&["--help"]);
        assert!(help.contains("\nMachine:\n  check "), "{help}");
        for other in [&["-h"][..], &["help"], &[]] {
            assert_eq!(shown(other), help, "{other:?}");
        }
    }
}
