//! `ROCR_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES` (ROCm, GPU isolation), and `ZE_AFFINITY_MASK`
//! (Level Zero specification, environment variables).

use std::path::Path;

use super::{
    super::visible::{Variables, Visible, words},
    card::Card,
};
use crate::host::{names, text};

/// GPUs that the variables of ROCm and Level Zero make visible.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Selection {
    /// `ROCR_VISIBLE_DEVICES`: numbers in the order of KFD, or `GPU-` and the unique id.
    rocr: Option<Vec<String>>,
    /// `HIP_VISIBLE_DEVICES`: numbers among those that ROCr leaves.
    hip: Option<Vec<String>>,
    /// `ZE_AFFINITY_MASK`: numbers of devices, or `device.tile`.
    level_zero: Option<Vec<String>>,
    /// Whether a device of Level Zero is a card, and not one of its tiles.
    composite: bool,
    /// Whether Level Zero numbers different cards in the order of PCI addresses.
    by_bus: bool,
}

impl Visible for Selection {
    fn of_environment(variables: &Variables<'_>) -> Option<Self> {
        let list = |name| variables.list(name).map(words);
        let selection = Self {
            rocr: list("ROCR_VISIBLE_DEVICES"),
            // HIP reads the variable of CUDA if its own is missing.
            hip: list("HIP_VISIBLE_DEVICES").or_else(|| list("CUDA_VISIBLE_DEVICES")),
            // Level Zero ignores an empty mask.
            level_zero: list("ZE_AFFINITY_MASK").filter(|words| !words.is_empty()),
            composite: variables.get("ZE_FLAT_DEVICE_HIERARCHY") == Some("COMPOSITE"),
            by_bus: variables.get("ZE_ENABLE_PCI_ID_DEVICE_ORDER") == Some("1"),
        };
        let restricts = [&selection.rocr, &selection.hip, &selection.level_zero];
        let restricts = restricts.iter().any(|list| list.is_some());
        restricts.then_some(selection)
    }
}

/// Numbers that the libraries give to the cards.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// Cards of AMD by the number of ROCm; a card with several partitions has several numbers.
    rocm: Vec<usize>,
    /// Cards of Intel by PCI address, with the number of tiles if it is known.
    level_zero: Vec<(usize, Option<usize>)>,
    /// Whether the cards of Intel are the same product.
    alike: bool,
}

impl Order {
    pub(super) fn read(sysfs: &Path, cards: &[Card]) -> Self {
        let by_bus = |vendor: &str| {
            let mut found: Vec<usize> = (0..cards.len()).collect();
            found.retain(|index| cards[*index].vendor == vendor);
            found.sort_by_key(|index| &cards[*index].bdf);
            found
        };
        let of_bdf = |bdf: &String| cards.iter().position(|card| card.bdf.as_ref() == Some(bdf));
        let mut rocm: Vec<usize> = agents(sysfs).iter().filter_map(of_bdf).collect();
        if rocm.is_empty() {
            rocm = by_bus("amd");
        }
        let intel = by_bus("intel");
        let product = |index: &usize| text(&cards[*index].device.join("device"));
        Self {
            rocm,
            alike: intel
                .windows(2)
                .all(|pair| product(&pair[0]) == product(&pair[1])),
            level_zero: intel
                .into_iter()
                .map(|index| (index, tiles(&cards[index])))
                .collect(),
        }
    }
}

/// PCI addresses of the GPUs of ROCm, in the order of their nodes.
fn agents(sysfs: &Path) -> Vec<String> {
    let nodes = sysfs.join("class/kfd/kfd/topology/nodes");
    let mut numbers: Vec<u32> = names(&nodes, "")
        .iter()
        .flat_map(|name| name.parse())
        .collect();
    numbers.sort_unstable();
    let address = |number: u32| {
        let properties = text(&nodes.join(number.to_string()).join("properties"))?;
        let property = |key: &str| -> Option<u32> {
            let mut lines = properties.lines();
            lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')?.parse().ok())
        };
        // Nodes of CPUs have no SIMD units.
        property("simd_count").filter(|&count| count > 0)?;
        let location = property("location_id")?;
        let domain = property("domain").unwrap_or(0);
        let (bus, device, function) = (location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
        Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function}"))
    };
    numbers.into_iter().filter_map(address).collect()
}

/// Number of tiles of a card of Intel, if the driver shows it.
fn tiles(card: &Card) -> Option<usize> {
    if card.driver == "xe" {
        return Some(names(&card.device, "tile").len().max(1));
    }
    // i915 shows the media engine of some cards like a tile.
    (names(&card.directory.join("gt"), "gt").len() <= 1).then_some(1)
}

impl Selection {
    /// Whether each of these cards is visible.
    pub(super) fn cards(&self, cards: &[Card], order: &Order) -> Vec<bool> {
        let mut seen = vec![true; cards.len()];
        let mut show_only = |all: &[usize], visible: &[usize]| {
            for index in all {
                seen[*index] = visible.contains(index);
            }
        };
        if self.rocr.is_some() || self.hip.is_some() {
            let of_rocr = named(self.rocr.as_deref(), &order.rocm, cards);
            show_only(&order.rocm, &named(self.hip.as_deref(), &of_rocr, cards));
        }
        if let Some(tiles) = self.tiles(order) {
            let all: Vec<usize> = order.level_zero.iter().map(|(index, _)| *index).collect();
            let words = self.level_zero.iter().flatten();
            let numbers = words.filter_map(|word| word.split('.').next()?.parse::<usize>().ok());
            let visible: Vec<usize> = numbers.filter_map(|n| tiles.get(n).copied()).collect();
            show_only(&all, &visible);
        }
        seen
    }

    /// Cards of Intel by the number of Level Zero; `None` if all cards are visible, or if the
    /// numbers are ambiguous: report one too many rather than one too few.
    fn tiles(&self, order: &Order) -> Option<Vec<usize>> {
        self.level_zero.as_ref()?;
        if !self.by_bus && !order.alike {
            return None;
        }
        let mut tiles = Vec::new();
        for (index, count) in &order.level_zero {
            let count = if self.composite { 1 } else { (*count)? };
            tiles.extend(std::iter::repeat_n(*index, count));
        }
        Some(tiles)
    }
}

/// Cards that a list of ROCm names, up to the first that does not exist; all without a list.
fn named(words: Option<&[String]>, all: &[usize], cards: &[Card]) -> Vec<usize> {
    let Some(words) = words else {
        return all.to_vec();
    };
    let card = |word: &String| {
        let Some(id) = word.strip_prefix("GPU-") else {
            return all.get(word.parse::<usize>().ok()?).copied();
        };
        let id = Some(id.to_ascii_lowercase()).filter(|id| !id.is_empty())?;
        let is = |index: &&usize| {
            let uuid = cards[**index].uuid.as_deref();
            uuid.is_some_and(|uuid| uuid.starts_with(&id))
        };
        all.iter().find(is).copied()
    };
    words.iter().map_while(card).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;
    use crate::host::Host;

    /// Cards by number: driver, bus, device id and unique id.
    const CARDS: [(&str, &str, &str, &str); 5] = [
        ("amdgpu", "c1", "0x740f", "aa11"),
        ("amdgpu", "03", "0x740f", "aa22"),
        ("amdgpu", "43", "0x740f", "bb33"),
        ("xe", "18", "0x0bd5", ""),
        ("xe", "17", "0x0bd5", ""),
    ];

    fn put(directory: &Path, file: &str, text: &str) {
        let path = directory.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn machine() -> (TempDir, Vec<Card>) {
        let directory = TempDir::new().unwrap();
        let sysfs = directory.path().join("sys");
        for (number, (driver, bus, id, unique)) in CARDS.iter().enumerate() {
            let device = format!("class/drm/card{number}/device");
            let uevent = format!("DRIVER={driver}\nPCI_SLOT_NAME=0000:{bus}:00.0\n");
            put(&sysfs, &format!("{device}/uevent"), &uevent);
            put(&sysfs, &format!("{device}/device"), id);
            put(&sysfs, &format!("{device}/unique_id"), unique);
            if *driver == "xe" {
                put(&sysfs, &format!("{device}/tile0/id"), "");
                put(&sysfs, &format!("{device}/tile1/id"), "");
            }
        }
        let host = Host::probe(directory.path().join("proc"), sysfs, None);
        (directory, super::super::cards(&host))
    }

    /// Numbers of the visible cards.
    fn seen(environment: &str, order: &Order, cards: &[Card]) -> Vec<usize> {
        let environment = environment.replace(' ', "\0");
        let selection = Selection::of_environment(&Variables::new(environment.as_bytes()));
        let seen = selection.unwrap_or_default().cards(cards, order);
        (0..cards.len()).filter(|index| seen[*index]).collect()
    }

    #[test]
    fn variables_select_cards() {
        let (directory, cards) = machine();
        let order = Order::read(&directory.path().join("sys"), &cards);
        for (environment, expected) in [
            ("HOME=/", vec![0, 1, 2, 3, 4]),
            // By PCI address: 1, 2, 0.
            ("ROCR_VISIBLE_DEVICES=0", vec![1, 3, 4]),
            ("ROCR_VISIBLE_DEVICES=2,0,9,1", vec![0, 1, 3, 4]),
            ("ROCR_VISIBLE_DEVICES=", vec![3, 4]),
            ("ROCR_VISIBLE_DEVICES=GPU-BB", vec![2, 3, 4]),
            (
                "HIP_VISIBLE_DEVICES=1 CUDA_VISIBLE_DEVICES=0",
                vec![2, 3, 4],
            ),
            ("CUDA_VISIBLE_DEVICES=0", vec![1, 3, 4]),
            // Numbers of HIP count the cards that ROCr leaves.
            (
                "ROCR_VISIBLE_DEVICES=2,1 HIP_VISIBLE_DEVICES=0",
                vec![0, 3, 4],
            ),
            // Two tiles each; by PCI address: 4, 3.
            ("ZE_AFFINITY_MASK=1", vec![0, 1, 2, 4]),
            ("ZE_AFFINITY_MASK=2", vec![0, 1, 2, 3]),
            (
                "ZE_AFFINITY_MASK=1.0 ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE",
                vec![0, 1, 2, 3],
            ),
            ("ZE_AFFINITY_MASK=", vec![0, 1, 2, 3, 4]),
            ("ZE_AFFINITY_MASK=0 ROCR_VISIBLE_DEVICES=1", vec![2, 4]),
        ] {
            assert_eq!(seen(environment, &order, &cards), expected, "{environment}");
        }
    }

    #[test]
    fn numbers_follow_the_nodes_of_kfd() {
        let (directory, cards) = machine();
        let sysfs = directory.path().join("sys");
        // Node 0 is a CPU; two partitions of card 2, then card 0 and card 1.
        for (node, simd, location) in [(0, 0, 0), (2, 8, 0x4300), (3, 8, 0x4300), (10, 8, 0xc100)] {
            let properties = format!("simd_count {simd}\nlocation_id {location}\ndomain 0\n");
            let file = format!("class/kfd/kfd/topology/nodes/{node}/properties");
            put(&sysfs, &file, &properties);
        }
        let order = Order::read(&sysfs, &cards);
        assert_eq!(order.rocm, [2, 2, 0]);
        for (list, expected) in [("1", vec![1, 2, 3, 4]), ("2", vec![0, 1, 3, 4])] {
            let environment = format!("ROCR_VISIBLE_DEVICES={list}");
            assert_eq!(seen(&environment, &order, &cards), expected, "{list}");
        }
    }

    #[test]
    fn ambiguous_numbers_of_level_zero_hide_no_card() {
        let (directory, _) = machine();
        let sysfs = directory.path().join("sys");
        put(&sysfs, "class/drm/card4/device/device", "0x56a0");
        let host = Host::probe(directory.path().join("proc"), sysfs.clone(), None);
        let cards = super::super::cards(&host);
        let order = Order::read(&sysfs, &cards);
        let all = vec![0, 1, 2, 3, 4];
        assert_eq!(seen("ZE_AFFINITY_MASK=0", &order, &cards), all);
        let by_bus = "ZE_AFFINITY_MASK=0 ZE_ENABLE_PCI_ID_DEVICE_ORDER=1";
        assert_eq!(seen(by_bus, &order, &cards), [0, 1, 2, 4]);
    }
}
