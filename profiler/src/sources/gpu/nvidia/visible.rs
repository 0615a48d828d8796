//! `CUDA_VISIBLE_DEVICES` (CUDA C++ Programming Guide, environment variables).

use super::super::visible::{Variables, Visible, words};

/// GPUs that `CUDA_VISIBLE_DEVICES` makes visible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Cuda {
    /// Numbers and UUIDs up to the first that is empty or -1; `None` for all GPUs.
    pub(in super::super) words: Option<Vec<String>>,
    /// Whether numbers are in the order of PCI addresses, as in NVML, and not by speed.
    by_bus: bool,
}

impl Visible for Cuda {
    fn of_environment(variables: &Variables<'_>) -> Option<Self> {
        let list = variables.list("CUDA_VISIBLE_DEVICES")?;
        Some(Self::parse(Some(list), variables.get("CUDA_DEVICE_ORDER")))
    }
}

/// A GPU that the variable may contain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) index: u32,
    pub(super) uuid: Option<&'a str>,
    pub(super) name: Option<&'a str>,
}

impl Cuda {
    fn parse(list: Option<&str>, order: Option<&str>) -> Self {
        Self {
            words: list.map(words),
            by_bus: order == Some("PCI_BUS_ID"),
        }
    }

    /// Whether each of these GPUs is visible.
    pub(super) fn gpus(&self, all: &[Candidate<'_>]) -> Vec<bool> {
        let Some(words) = &self.words else {
            return vec![true; all.len()];
        };
        let alike = all.windows(2).all(|pair| pair[0].name == pair[1].name);
        let unclear = |word: &String| {
            word.starts_with("MIG-") || !(self.by_bus || alike) && word.parse::<u32>().is_ok()
        };
        // The GPU is ambiguous: report one too many rather than one too few.
        if words.iter().any(unclear) {
            return vec![true; all.len()];
        }
        let mut seen = vec![false; all.len()];
        for word in words {
            let number = word.parse::<u32>().ok();
            let named = all.iter().position(|gpu| match number {
                Some(number) => gpu.index == number,
                None => gpu.uuid.is_some_and(|uuid| uuid.starts_with(word)),
            });
            // CUDA ignores everything after a GPU that does not exist.
            let Some(named) = named else { break };
            seen[named] = true;
        }
        seen
    }

    /// Whether a MIG instance is visible.
    pub(super) fn instance(&self, uuid: &str) -> bool {
        let words = self.words.iter().flatten();
        let mut named = words.filter(|word| word.starts_with("MIG-")).peekable();
        named.peek().is_none() || named.any(|word| uuid.starts_with(word.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(list: Option<&str>, order: Option<&str>, names: [&str; 3]) -> [bool; 3] {
        let uuids = ["GPU-aa11", "GPU-aa22", "GPU-bb33"];
        let all: [Candidate<'_>; 3] = std::array::from_fn(|index| Candidate {
            index: u32::try_from(index).unwrap(),
            uuid: Some(uuids[index]),
            name: Some(names[index]),
        });
        let seen = Cuda::parse(list, order).gpus(&all);
        seen.try_into().unwrap()
    }

    #[test]
    fn gpus_are_selected_by_number_and_uuid() {
        let alike = ["A100"; 3];
        for (list, expected) in [
            (None, [true; 3]),
            (Some(""), [false; 3]),
            (Some("-1"), [false; 3]),
            (Some("2, 0"), [true, false, true]),
            (Some("1,7,0"), [false, true, false]),
            (Some("0,-1,1"), [true, false, false]),
            (Some("GPU-bb,GPU-aa22"), [false, true, true]),
            (Some("GPU-cc"), [false; 3]),
            (Some("MIG-1"), [true; 3]),
        ] {
            assert_eq!(seen(list, None, alike), expected, "{list:?}");
        }
    }

    #[test]
    fn numbers_of_different_gpus_need_an_order() {
        let unlike = ["T4", "T4", "A100"];
        assert_eq!(seen(Some("0"), None, unlike), [true; 3]);
        assert_eq!(seen(Some("0"), Some("FASTEST_FIRST"), unlike), [true; 3]);
        let by_bus = seen(Some("0"), Some("PCI_BUS_ID"), unlike);
        assert_eq!(by_bus, [true, false, false]);
        assert_eq!(seen(Some("GPU-bb"), None, unlike), [false, false, true]);
    }

    #[test]
    fn instances_are_selected_by_uuid() {
        let seen = |list, uuid| Cuda::parse(list, None).instance(uuid);
        assert!(seen(None, "MIG-1") && seen(Some("0"), "MIG-1"));
        assert!(seen(Some("MIG-1,MIG-2"), "MIG-2a") && !seen(Some("MIG-1"), "MIG-2"));
    }
}
