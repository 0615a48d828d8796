//! `ROCR_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES` (ROCm, GPU isolation), and `ZE_AFFINITY_MASK`
//! (Level Zero specification, environment variables).

use std::path::Path;

use super::{
    super::{
        numbering::{Meaning, Named, Numbered},
        variables::Variables,
        visible::{Known, Selects},
    },
    card::Card,
};
use crate::{
    host::{names, text},
    procfs::{device_access::DeviceAccess, gpu_files::DRM},
};

/// GPUs that the variables of ROCm and Level Zero make visible.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

impl Selects for Selection {
    const VARIABLES: &str =
        "ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES or ZE_AFFINITY_MASK";

    fn of_environment(variables: &Variables<'_>, _: &DeviceAccess) -> Option<Self> {
        let list = |name| variables.list(name);
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

/// Cards that a process may use; `None` if it is not restricted.
pub(super) fn cards(known: &Known<Selection>, cards: &[Card], order: &Order) -> Option<Meaning> {
    let intel: Vec<usize> = order.level_zero.iter().map(|(index, _)| *index).collect();
    let amd = order.of_rocm(known, cards);
    let of_level_zero = order.of_level_zero(&intel, known, cards);
    let restricted = [(amd, &order.rocm), (of_level_zero, &intel)];
    let restricted = restricted.into_iter();
    restricted
        .filter_map(|(meaning, all)| Some((meaning?, all)))
        .fold(None, |before, (meaning, all)| {
            let mut whole = before.unwrap_or_else(|| Meaning {
                gpus: (0..cards.len()).collect(),
                is_certain: true,
            });
            whole.gpus.retain(|index| !all.contains(index));
            whole.gpus.extend(meaning.gpus);
            whole.is_certain &= meaning.is_certain;
            Some(whole)
        })
}

impl Order {
    /// Cards of AMD; `None` if all.
    fn of_rocm(&self, known: &Known<Selection>, cards: &[Card]) -> Option<Meaning> {
        let numbering = known.share.numbering(&numbered(&self.rocm, cards));
        let selection = known.selection.as_ref();
        let rocr = selection.and_then(|selection| selection.rocr.as_deref());
        let hip = selection.and_then(|selection| selection.hip.as_deref());
        if rocr.is_none() && hip.is_none() && !numbering.is_part {
            return None;
        }
        Some(numbering.meaning(|order| {
            let (of_rocr, is_rocr_whole) = named(rocr, order, cards);
            let of_rocr: Vec<Option<usize>> = of_rocr.into_iter().map(Some).collect();
            let (of_hip, is_hip_whole) = named(hip, &of_rocr, cards);
            Named {
                gpus: of_hip.into_iter().collect(),
                all_exist: is_rocr_whole && is_hip_whole,
            }
        }))
    }

    /// Cards of Intel; `None` if all.
    fn of_level_zero(
        &self,
        by_bus: &[usize],
        known: &Known<Selection>,
        cards: &[Card],
    ) -> Option<Meaning> {
        let numbering = known.share.numbering(&numbered(by_bus, cards));
        let selection = known.selection.as_ref();
        let selection = selection.filter(|selection| selection.level_zero.is_some());
        let Some(selection) = selection else {
            let whole = |order: &[Option<usize>]| Named {
                gpus: order.iter().flatten().copied().collect(),
                all_exist: true,
            };
            return numbering.is_part.then(|| numbering.meaning(whole));
        };
        let own = numbering.all();
        let devices = |index: usize| {
            let (_, tiles) = self.level_zero.iter().find(|(card, _)| *card == index)?;
            if selection.composite { Some(1) } else { *tiles }
        };
        let is_clear = own.iter().all(|index| devices(*index).is_some());
        // Report one too many rather than one too few.
        if !is_clear || !selection.by_bus && !self.alike {
            return Some(Meaning::one_of(own));
        }
        let words = selection.level_zero.iter().flatten();
        let numbers: Vec<usize> = words
            .filter_map(|word| word.split('.').next()?.parse().ok())
            .collect();
        Some(numbering.meaning(|order| {
            let of_card = |card: &Option<usize>| {
                let count = card.map_or(Some(1), devices).unwrap_or(1);
                std::iter::repeat_n(*card, count)
            };
            let order: Vec<Option<usize>> = order.iter().flat_map(of_card).collect();
            let found = numbers.iter().map(|number| *order.get(*number)?);
            let found: Vec<Option<usize>> = found.collect();
            Named {
                all_exist: found.iter().all(Option::is_some),
                gpus: found.into_iter().flatten().collect(),
            }
        }))
    }
}

/// Cards in this order, with their device files.
fn numbered(order: &[usize], cards: &[Card]) -> Vec<Numbered> {
    let numbered = order.iter().map(|at| Numbered {
        at: *at,
        device: cards[*at].render_minor.map(|minor| (DRM, minor)),
    });
    numbered.collect()
}

/// Cards that a list of ROCm names, up to the first that does not exist, and whether all exist;
/// all without a list.
fn named(words: Option<&[String]>, order: &[Option<usize>], cards: &[Card]) -> (Vec<usize>, bool) {
    let Some(words) = words else {
        return (order.iter().flatten().copied().collect(), true);
    };
    let card = |word: &String| {
        let Some(id) = word.strip_prefix("GPU-") else {
            return *order.get(word.parse::<usize>().ok()?)?;
        };
        let id = Some(id.to_ascii_lowercase()).filter(|id| !id.is_empty())?;
        let is = |index: &&usize| {
            let uuid = cards[**index].uuid.as_deref();
            uuid.is_some_and(|uuid| uuid.starts_with(&id))
        };
        order.iter().flatten().find(is).copied()
    };
    let found: Vec<usize> = words.iter().map_while(card).collect();
    let all_exist = found.len() == words.len();
    (found, all_exist)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::{super::super::numbering::Share, *};
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
            let render = format!("{device}/drm/renderD{}/dev", 128 + number);
            put(&sysfs, &render, "");
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
        seen_with(DeviceAccess::default(), environment, order, cards)
    }

    fn seen_with(
        access: DeviceAccess,
        environment: &str,
        order: &Order,
        cards: &[Card],
    ) -> Vec<usize> {
        let environment = environment.replace(' ', "\0");
        let variables = Variables::new(environment.as_bytes());
        let known = Known {
            selection: Selection::of_environment(&variables, &access),
            share: Share::new(&variables, access),
        };
        let seen = super::cards(&known, cards, order).map(|seen| seen.gpus);
        seen.map_or_else(
            || (0..cards.len()).collect(),
            |seen| seen.into_iter().collect(),
        )
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
            // In the order of the bus: 1, 2, 0 and 4, 3.
            ("SLURM_JOB_GPUS=2", vec![0, 3, 4]),
            ("SLURM_JOB_GPUS=2 ROCR_VISIBLE_DEVICES=0", vec![0, 3, 4]),
            ("SLURM_JOB_GPUS=2 ROCR_VISIBLE_DEVICES=2", vec![0, 3, 4]),
            ("SLURM_STEP_GPUS=130 ROCR_VISIBLE_DEVICES=0", vec![2, 3, 4]),
            ("SLURM_JOB_GPUS=131 ZE_AFFINITY_MASK=1", vec![0, 1, 2, 3]),
        ] {
            assert_eq!(seen(environment, &order, &cards), expected, "{environment}");
        }
    }

    #[test]
    fn numbers_count_the_cards_that_can_be_opened() {
        let (directory, cards) = machine();
        let order = Order::read(&directory.path().join("sys"), &cards);
        // Cards 2, 0 and 3; by PCI address: 1, 2, 0 and 4, 3.
        let files = [130, 128, 131].map(|minor| (DRM, minor));
        let access = DeviceAccess::to_files(files);
        for (environment, expected) in [
            ("HOME=/", vec![0, 2, 3]),
            ("ROCR_VISIBLE_DEVICES=0", vec![2, 3]),
            ("ROCR_VISIBLE_DEVICES=1", vec![0, 3]),
            ("ROCR_VISIBLE_DEVICES=1,0 HIP_VISIBLE_DEVICES=1", vec![2, 3]),
            // The third does not exist, so the rest is ignored.
            ("HIP_VISIBLE_DEVICES=2,0", vec![3]),
            ("ROCR_VISIBLE_DEVICES=GPU-AA11", vec![0, 3]),
            ("ROCR_VISIBLE_DEVICES=GPU-AA22", vec![3]),
            // Two tiles.
            ("ZE_AFFINITY_MASK=1", vec![0, 2, 3]),
            ("ZE_AFFINITY_MASK=2", vec![0, 2]),
        ] {
            let seen = seen_with(access.clone(), environment, &order, &cards);
            assert_eq!(seen, expected, "{environment}");
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
