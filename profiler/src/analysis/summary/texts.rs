//! Figures as text.

use super::{Figures, OF_LATENCIES, OF_RANKS, OF_REGIONS, OF_TARGETS};
use crate::analysis::{
    catalog::{
        DISKS, GPUS, LATENCIES, NODE, PROCESSES, REGION_TIMES, REGIONS, SYSCALLS, TARGET, THREADS,
    },
    figure::Unit,
    page::NULL,
};

impl Figures {
    /// A figure as text; [`NULL`] if it is missing.
    pub(super) fn text(&self, name: &str) -> String {
        self.known(name).unwrap_or_else(|| NULL.to_owned())
    }

    /// A figure as text; `None` if it is missing.
    pub(super) fn known(&self, name: &str) -> Option<String> {
        let value = self.get(name)?;
        let least = self.coverage(name).map_or("", |_| "≥ ");
        Some(format!("{least}{}", unit_of(name).format(value)))
    }

    /// A figure as text, with the number of rows that a partial sum has.
    pub(super) fn text_with_rows(&self, name: &str) -> String {
        let rows = self.coverage(name);
        let rows = rows.map_or(String::new(), |rows| {
            format!(" ({} of {})", rows.known, rows.of)
        });
        format!("{}{rows}", self.text(name))
    }

    /// A figure that is a lower bound, as text.
    pub(super) fn at_least(&self, name: &str) -> String {
        self.get(name).map_or_else(
            || NULL.to_owned(),
            |value| format!("≥ {}", unit_of(name).format(value)),
        )
    }

    /// A figure as text, unless it is 0 or not in the data.
    pub(super) fn positive(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| *value > 0.0)?;
        self.known(name)
    }
}

fn unit_of(name: &str) -> Unit {
    let all = [
        PROCESSES,
        TARGET,
        NODE,
        GPUS,
        REGIONS,
        REGION_TIMES,
        DISKS,
        LATENCIES,
        SYSCALLS,
        THREADS,
    ];
    let all = all.concat();
    let all = all.iter().map(|figure| (figure.name, figure.unit));
    let derived = OF_TARGETS
        .into_iter()
        .chain(OF_REGIONS)
        .chain(OF_LATENCIES)
        .chain(OF_RANKS);
    let mut all = all.chain(derived.map(|figure| (figure.name, figure.unit)));
    all.find(|known| known.0 == name)
        .map_or(Unit::Count, |(_, unit)| unit)
}

/// Parts that are known, separated by commas.
pub(super) fn joined(parts: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}
