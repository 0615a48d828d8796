//! The facts about a machine that decide its ceilings.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    host::Host,
    sources::host::{HostRow, facts},
};

/// Facts by the name of their column in table `host`. Only facts that are known are in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Machine(BTreeMap<String, String>);

macro_rules! machine {
    ($($column:ident,)*) => {
        /// Columns of table `host`.
        pub const COLUMNS: &[&str] = &[$(stringify!($column)),*];

        impl From<&HostRow> for Machine {
            fn from(row: &HostRow) -> Self {
                let known = [$((stringify!($column), row.$column.as_ref().map(ToString::to_string))),*];
                Self::of(known.into_iter())
            }
        }
    };
}

machine! {
    cpu_vendor,
    cpu_model_name,
    cpu_family,
    cpu_model,
    cpu_stepping,
    cpu_implementer,
    cpu_variant,
    cpu_part,
    cpu_revision,
    microcode,
    cpufreq_governor,
    smt,
    sockets,
    cores,
    numa_nodes,
    memory_total,
}

/// The size of the memory, from which kernels reserve different amounts at boot.
const MEMORY: &str = "memory_total";
/// Share by which the size may differ.
const TOLERANCE: f64 = 0.02;

impl Machine {
    /// The facts that are known.
    pub fn of<'a>(facts: impl Iterator<Item = (&'a str, Option<String>)>) -> Self {
        let known = facts.filter_map(|(name, fact)| Some((name.to_owned(), fact?)));
        Self(known.collect())
    }

    /// This machine.
    pub fn here(host: &Host) -> Self {
        Self::from(&facts(host))
    }

    /// A fact.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All facts.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let facts = self.0.iter();
        facts.map(|(name, fact)| (name.as_str(), fact.as_str()))
    }

    /// The first of these facts that differs on another machine, or is unknown there: its name, the
    /// fact here and there.
    pub fn difference<'a>(
        &'a self,
        other: &'a Self,
    ) -> Option<(&'a str, &'a str, Option<&'a str>)> {
        let facts = self
            .iter()
            .map(|(name, fact)| (name, fact, other.get(name)));
        let mut differing = facts.filter(|(name, fact, there)| !equal(name, fact, *there));
        differing.next()
    }
}

fn equal(name: &str, here: &str, there: Option<&str>) -> bool {
    let numbers = || Some((here.parse::<f64>().ok()?, there?.parse::<f64>().ok()?));
    match numbers() {
        Some((here, there)) if name == MEMORY => (here - there).abs() <= TOLERANCE * here,
        _ => Some(here) == there,
    }
}

/// Numbers and truth values are accepted too: `cpu_family = 25`.
impl<'de> Deserialize<'de> for Machine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = BTreeMap::<String, toml::Value>::deserialize(deserializer)?;
        let facts = values.into_iter().map(|(name, value)| {
            if !COLUMNS.contains(&name.as_str()) {
                let known = COLUMNS.join(", ");
                return Err(serde::de::Error::custom(format!(
                    "unknown fact `{name}` of a machine; known are {known}"
                )));
            }
            let text = match value {
                toml::Value::String(text) => text,
                other => other.to_string(),
            };
            Ok((name, text))
        });
        facts.collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(facts: &str) -> Machine {
        toml::from_str(facts).expect("facts")
    }

    #[test]
    fn every_given_fact_must_be_the_same() {
        let run = machine(
            "cpu_model_name = 'X 1'\nmicrocode = '0x1'\nsmt = true\nmemory_total = 67000000000",
        );
        let is_same = |facts: &str| machine(facts).difference(&run).is_none();
        assert!(is_same("") && is_same("cpu_model_name = 'X 1'\nsmt = true"));
        // Two kernels reserve different amounts of the same memory.
        assert!(is_same("memory_total = 66500000000"));
        assert!(!is_same("memory_total = 33500000000"));
        assert!(!is_same("smt = false"));
        let other = machine("microcode = '0x2'");
        assert_eq!(
            other.difference(&run),
            Some(("microcode", "0x2", Some("0x1")))
        );
        // A fact that the run does not have may differ.
        let unknown = machine("cpufreq_governor = 'performance'");
        assert_eq!(
            unknown.difference(&run),
            Some(("cpufreq_governor", "performance", None))
        );
    }

    #[test]
    fn unknown_facts_are_refused() {
        let error = toml::from_str::<Machine>("cpu_name = 3").expect_err("a typing error");
        assert!(
            error.message().contains("unknown fact `cpu_name`"),
            "{error}"
        );
    }

    #[test]
    fn this_machine_is_itself() {
        let host = Host::probe("/proc", "/sys", None);
        let here = Machine::here(&host);
        assert!(here.get("memory_total").is_some() && here.get("sockets").is_some());
        assert_eq!(here.difference(&Machine::here(&host)), None);
        let text = toml::to_string(&here).expect("TOML");
        assert_eq!(machine(&text), here);
    }
}
