//! `/proc/cpuinfo`.
//!
//! This parser replaces that of the `procfs` crate, which ends a value at its second colon.

use std::{collections::HashMap, path::Path};

/// Fields of one CPU by name.
pub(crate) type Fields = HashMap<String, String>;

/// Fields of each CPU, in the order of the file; none if it is missing or has no fields.
pub(crate) fn read(procfs: &Path) -> Vec<Fields> {
    std::fs::read(procfs.join("cpuinfo"))
        .map(|bytes| parse(&String::from_utf8_lossy(&bytes)))
        .unwrap_or_default()
}

/// A block of lines `name : value` per CPU, which begins with its number; other blocks describe the
/// machine (POWER).
fn parse(text: &str) -> Vec<Fields> {
    let mut cpus = Vec::new();
    for block in text.split("\n\n") {
        let pairs = block.lines().filter_map(|line| line.split_once(':'));
        let mut pairs = pairs
            .map(|(name, value)| (name.trim(), value.trim()))
            .skip_while(|(name, _)| *name != "processor")
            .peekable();
        if pairs.peek().is_some() {
            cpus.push(
                pairs
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
            );
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_colons() {
        let text = "processor\t: 0\nmodel name\t: AMD Eng Sample: 100-000000163-43_29/17_Y\n\
                    power management:\n\nprocessor\t: 2\nmodel name\t:\nno field\n\n\
                    timebase\t: 512000000\nmodel\t\t: 9105-22A\n\n";
        let cpus = parse(text);
        assert_eq!(cpus.len(), 2, "the last block is the machine's: {cpus:?}");
        assert_eq!(
            cpus[0]["model name"],
            "AMD Eng Sample: 100-000000163-43_29/17_Y"
        );
        assert_eq!(cpus[0]["power management"], "");
        assert_eq!((&cpus[1]["processor"][..], cpus[1].len()), ("2", 2));
        assert!(parse("").is_empty() && parse("Hardware\t: x\n").is_empty());
    }
}
