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

/// Writes the columns of these kernels. Those of others remain.
pub fn write(workspace: &Workspace, found: &[Hooks]) -> Result<()> {
    let path = workspace.root.join(PAGE);
    let page = read(workspace)?;
    let (before, present, after) = split(&page)?;
    let table = render(&merge(parse(present), found));
    let text = format!("{before}{BEGIN}\n\n{table}\n{END}{after}");
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

/// Fails if the page differs for these kernels. Other kernels, such as the running one, need not be
/// on the page.
pub fn check(workspace: &Workspace, found: &[Hooks]) -> Result<()> {
    let page = read(workspace)?;
    let (_, present, _) = split(&page)?;
    let present = parse(present);
    let tested = |of: &[Hooks], others: &[Hooks]| {
        let both = |hooks: &&Hooks| others.iter().any(|other| other.kernel == hooks.kernel);
        facts(of.iter().filter(both))
    };
    let (expected, present) = (tested(found, &present), tested(&present, found));
    let differences: Vec<String> = expected
        .symmetric_difference(&present)
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

/// The hooks in a table and the reasons below it.
fn parse(text: &str) -> Vec<Hooks> {
    let mut rows = text.lines().filter_map(cells);
    let header = rows.next().unwrap_or_default();
    let kernels = header.iter().skip(1);
    let mut found: Vec<Hooks> = kernels
        .map(|kernel| Hooks {
            kernel: (*kernel).to_owned(),
            ..Hooks::default()
        })
        .collect();
    for row in rows.filter(|row| !row[0].starts_with("---")) {
        for (hooks, cell) in found.iter_mut().zip(&row[1..]) {
            let hook = (*cell != NONE).then(|| (*cell).to_owned());
            hooks.by_program.insert(row[0].to_owned(), hook);
        }
    }
    for (kernel, program, why) in text.lines().filter_map(reason) {
        let hooks = found.iter_mut().find(|hooks| hooks.kernel == kernel);
        if let Some(hooks) = hooks {
            hooks.reasons.insert(program.to_owned(), why.to_owned());
        }
    }
    found
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    let cells = inner.split('|').map(|cell| cell.trim().trim_matches('`'));
    Some(cells.collect())
}

/// The kernel, the program and the reason of a line below the table.
fn reason(line: &str) -> Option<(&str, &str, &str)> {
    let (kernel, rest) = line.strip_prefix("- ")?.split_once(", `")?;
    let (program, why) = rest.split_once("`: ")?;
    Some((kernel, program, why))
}

/// The hooks on the page, with those that were found in their place.
fn merge(mut present: Vec<Hooks>, found: &[Hooks]) -> Vec<Hooks> {
    present.retain(|hooks| !found.iter().any(|new| new.kernel == hooks.kernel));
    present.extend_from_slice(found);
    present
}

/// A program that has a hook. One without is equivalent to one that is not listed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fact {
    kernel: String,
    program: String,
    hook: String,
}

fn facts<'a>(all: impl IntoIterator<Item = &'a Hooks>) -> BTreeSet<Fact> {
    let mut facts = BTreeSet::new();
    for hooks in all {
        for (program, hook) in &hooks.by_program {
            facts.extend(hook.as_ref().map(|hook| Fact {
                kernel: hooks.kernel.clone(),
                program: program.clone(),
                hook: hook.clone(),
            }));
        }
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::{Hooks, facts, merge, parse, render, split};

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
    fn table_is_read_as_it_was_written() {
        let old = hooks("6.1", &[("mark", Some("iter/task")), ("send", None)]);
        let new = hooks(
            "6.18",
            &[("mark", Some("iter/task")), ("send", Some("tp_btf/send"))],
        );
        let both = [old, new];
        assert_eq!(parse(&render(&both)), both);
    }

    #[test]
    fn columns_of_other_kernels_remain() {
        let old = hooks("5.15", &[("mark", Some("iter/task")), ("send", None)]);
        let before = hooks("6.1", &[("send", Some("fexit/send"))]);
        let after = hooks("6.1", &[("send", Some("tp_btf/send"))]);
        let merged = merge(vec![old.clone(), before], std::slice::from_ref(&after));
        assert_eq!(merged, [old, after]);
    }

    #[test]
    fn programs_without_a_hook_are_no_facts() {
        let hooks = hooks("6.1", &[("mark", Some("iter/task")), ("send", None)]);
        assert_eq!(facts([&hooks]).len(), 1);
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
        assert_eq!(parse(generated)[0].kernel, "6.1");
        assert!(split("no marks").is_err());
    }
}
