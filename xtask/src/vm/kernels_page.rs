//! The generated table in `docs/kernels.md`: the hook of each program on each kernel.

use std::{collections::BTreeSet, fmt::Write as _, fs};

use anyhow::{Context as _, Result, bail};

use super::hooks::Hooks;
use crate::{workspace, workspace::Workspace};

const PAGE: &str = "docs/kernels.md";
const COMMAND: &str = "cargo xtask vm 6.1 6.12 --write-table";
/// The generated part lies between these lines.
const BEGIN: &str = "<!-- generated: cargo xtask vm 6.1 6.12 --write-table -->";
const END: &str = "<!-- generated: end -->";

/// Replaces the table.
pub fn write(workspace: &Workspace, found: &[Hooks]) -> Result<()> {
    let path = workspace.root.join(PAGE);
    let page = read(workspace)?;
    let (before, _, after) = split(&page)?;
    let text = format!("{before}{BEGIN}\n\n{}\n{END}{after}", render(found));
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// Fails if the page differs for these kernels. Other kernels, such as the running one, need not be
/// on the page.
pub fn check(workspace: &Workspace, found: &[Hooks]) -> Result<()> {
    let page = read(workspace)?;
    let (_, present, _) = split(&page)?;
    let kernels = kernels_of(present);
    let known: Vec<Hooks> = found
        .iter()
        .filter(|hooks| kernels.contains(&hooks.kernel))
        .cloned()
        .collect();
    let expected = render(&known);
    let (expected, present) = (facts(&expected), facts(present));
    let names: BTreeSet<&str> = known.iter().map(|hooks| hooks.kernel.as_str()).collect();
    let differences: Vec<String> = expected
        .symmetric_difference(&present)
        .filter(|fact| names.contains(fact.kernel.as_str()))
        .map(|fact| {
            let origin = if present.contains(fact) {
                "the page"
            } else {
                "now"
            };
            format!(
                "{origin}: {} on {}: {}",
                fact.program, fact.kernel, fact.hook
            )
        })
        .collect();
    if !differences.is_empty() {
        bail!(
            "{PAGE} is outdated; run `{COMMAND}`\n{}",
            differences.join("\n")
        );
    }
    Ok(())
}

fn read(workspace: &Workspace) -> Result<String> {
    let path = workspace.root.join(PAGE);
    fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
}

/// The text before, in and after the generated part.
fn split(page: &str) -> Result<(&str, &str, &str)> {
    let parts = page.split_once(BEGIN).and_then(|(before, rest)| {
        let (generated, after) = rest.split_once(END)?;
        Some((before, generated, after))
    });
    parts.with_context(|| format!("{PAGE} has no generated part, from `{BEGIN}` to `{END}`"))
}

/// The table, followed by the reasons for missing hooks.
fn render(found: &[Hooks]) -> String {
    let mut found: Vec<&Hooks> = found.iter().collect();
    found.sort_by_key(|hooks| workspace::parse_version(&hooks.kernel));
    let programs: BTreeSet<&String> = found
        .iter()
        .flat_map(|hooks| hooks.by_program.keys())
        .collect();
    let mut text = String::from("| program |");
    for hooks in &found {
        let _ = write!(text, " {} |", hooks.kernel);
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(found.len()));
    for program in programs {
        let _ = write!(text, "| `{program}` |");
        for hooks in &found {
            let hook = hooks.by_program.get(program).and_then(Option::as_ref);
            let _ = match hook {
                Some(hook) => write!(text, " `{hook}` |"),
                None => write!(text, " {NONE} |"),
            };
        }
        text.push('\n');
    }
    let reasons = || {
        let of = |hooks: &&&Hooks| !hooks.reasons.is_empty();
        found.iter().filter(of)
    };
    if reasons().next().is_some() {
        text.push('\n');
    }
    for hooks in reasons() {
        for (program, why) in &hooks.reasons {
            let _ = writeln!(text, "- {}, `{program}`: {why}", hooks.kernel);
        }
    }
    text
}

const NONE: &str = "none";

/// One cell of the table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fact {
    kernel: String,
    program: String,
    hook: String,
}

fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().filter_map(cells).collect()
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let cells = inner.split('|').map(|cell| cell.trim().trim_matches('`'));
    Some(cells.collect())
}

fn kernels_of(text: &str) -> BTreeSet<String> {
    let rows = rows(text);
    let header = rows.first().map(Vec::as_slice).unwrap_or_default();
    header
        .iter()
        .skip(1)
        .map(|cell| (*cell).to_owned())
        .collect()
}

/// The cells of a table. A program without a hook is equivalent to one that is not listed.
fn facts(text: &str) -> BTreeSet<Fact> {
    let rows = rows(text);
    let Some((header, rows)) = rows.split_first() else {
        return BTreeSet::new();
    };
    let mut facts = BTreeSet::new();
    for row in rows {
        for (kernel, cell) in header.iter().zip(row).skip(1) {
            if *cell != NONE && !cell.starts_with("---") {
                facts.insert(Fact {
                    kernel: (*kernel).to_owned(),
                    program: row[0].to_owned(),
                    hook: (*cell).to_owned(),
                });
            }
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::{Hooks, facts, kernels_of, render, split};

    fn hooks(kernel: &str, programs: &[(&str, Option<&str>)]) -> Hooks {
        let text = |text: &str| text.to_owned();
        let without_hook = programs.iter().filter(|(_, hook)| hook.is_none());
        Hooks {
            kernel: text(kernel),
            by_program: programs
                .iter()
                .map(|(name, hook)| (text(name), hook.map(text)))
                .collect(),
            reasons: without_hook
                .map(|(name, _)| (text(name), text("no such hook")))
                .collect(),
        }
    }

    #[test]
    fn kernels_are_sorted_and_reasons_follow() {
        let new = hooks(
            "6.12",
            &[("mark", Some("iter/task")), ("send", Some("tp_btf/send"))],
        );
        let old = hooks("6.1", &[("mark", Some("iter/task")), ("send", None)]);
        let expected = "\
| program | 6.1 | 6.12 |
|---|---|---|
| `mark` | `iter/task` | `iter/task` |
| `send` | none | `tp_btf/send` |

- 6.1, `send`: no such hook
";
        assert_eq!(render(&[new, old]), expected);
    }

    #[test]
    fn facts_are_independent_of_other_kernels() {
        let old = hooks("6.1", &[("mark", Some("iter/task")), ("send", None)]);
        let new = hooks("6.18", &[("send", Some("tp_btf/send"))]);
        let both = facts(&render(&[old.clone(), new]));
        let alone = facts(&render(&[old]));
        assert_eq!(both.len(), 2);
        assert_eq!(both.iter().filter(|fact| fact.kernel == "6.1").count(), 1);
        assert!(alone.is_subset(&both));
    }

    #[test]
    fn page_is_split_at_the_generated_part() {
        let page = format!(
            "a\n{}\n\n| program | 6.1 |\n{}\nz\n",
            super::BEGIN,
            super::END
        );
        let (before, generated, after) = split(&page).expect("marked");
        assert_eq!((before, after), ("a\n", "\nz\n"));
        assert!(kernels_of(generated).contains("6.1"));
        assert!(split("no marks").is_err());
    }
}
