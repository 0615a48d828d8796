//! Binary table `gpu_metrics` of amdgpu (drivers/gpu/drm/amd/include/kgd_pp_interface.h).
//!
//! The header has 4 bytes: size u16, format u8, content u8. Format 1 is that of discrete GPUs, 2
//! and 3 those of APUs. A value with all bits set is not available.

use super::super::reading::named;
use crate::schema::Label;

/// Values of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Metrics {
    /// %.
    pub(super) utilization: Option<u64>,
    /// %.
    pub(super) memory_utilization: Option<u64>,
    /// %.
    pub(super) media_utilization: Option<u64>,
    /// °C.
    pub(super) temperature: Option<u64>,
    /// °C.
    pub(super) hotspot: Option<u64>,
    /// °C.
    pub(super) memory: Option<u64>,
    /// °C, of the hottest stack.
    pub(super) hbm: Option<u64>,
    /// °C of the voltage regulators: shader cores, rest of the chip, memory.
    pub(super) regulators: [Option<u64>; 3],
    /// Hz of SOCCLK, VCLK and DCLK; the highest one of several.
    pub(super) clocks: [Option<u64>; 3],
    /// µJ since the driver was loaded.
    pub(super) energy_uj: Option<u64>,
    /// Bits `SMU_THROTTLER_*_BIT`, which are the same for all chips.
    pub(super) throttlers: Option<u64>,
}

/// Offsets of the values in a version of the table, in bytes.
struct Layout {
    /// Minimum size of the table.
    size: usize,
    utilization: usize,
    memory_utilization: Option<usize>,
    media_utilization: Option<usize>,
    temperature: usize,
    hotspot: Option<usize>,
    memory: Option<usize>,
    /// Four stacks.
    hbm: Option<usize>,
    regulators: [Option<usize>; 3],
    clocks: Option<Clocks>,
    energy: Option<usize>,
    throttlers: Option<usize>,
    /// Units per percent and per degree.
    scale: u64,
}

/// Offsets of the present SOCCLK, VCLK and DCLK, and the number of each.
#[derive(Clone, Copy)]
struct Clocks {
    at: [usize; 3],
    count: usize,
}

const fn layout(size: usize, utilization: usize, temperature: usize) -> Layout {
    Layout {
        size,
        utilization,
        memory_utilization: None,
        media_utilization: None,
        temperature,
        hotspot: None,
        memory: None,
        hbm: None,
        regulators: [None; 3],
        clocks: None,
        energy: None,
        throttlers: None,
        scale: 1,
    }
}

/// Discrete GPUs, whose clocks have the same offsets in all versions.
const DISCRETE_CLOCKS: Option<Clocks> = Some(Clocks {
    at: [56, 60, 62],
    count: 1,
});

/// Layout of a version; `size` is that of the header.
fn of_version(format: u8, content: u8, size: usize) -> Option<Layout> {
    let layout = match (format, content) {
        (1, 0) => Layout {
            memory_utilization: Some(30),
            media_utilization: Some(32),
            hotspot: Some(18),
            memory: Some(20),
            regulators: [Some(22), Some(24), Some(26)],
            clocks: DISCRETE_CLOCKS,
            ..layout(72, 28, 16)
        },
        (1, 1..=3) => Layout {
            memory_utilization: Some(18),
            media_utilization: Some(20),
            hotspot: Some(6),
            memory: Some(8),
            hbm: Some(88),
            regulators: [Some(10), Some(12), Some(14)],
            clocks: DISCRETE_CLOCKS,
            energy: Some(24),
            throttlers: (content == 3).then_some(112),
            ..layout(if content == 3 { 120 } else { 96 }, 16, 4)
        },
        (1, 4) => instinct(24, 256),
        (1, 5) => instinct(88, 328),
        // An early version 1.6 is shorter, and has an extended layout of 1.5.
        (1, 6) if size >= 1024 => instinct(16, 280),
        (1, 7 | 8) => instinct(24, 312),
        (2, 0) => Layout {
            media_utilization: Some(42),
            clocks: Some(apu_clocks(82)),
            ..layout(112, 40, 16)
        },
        (2, 1..=4) => Layout {
            media_utilization: Some(30),
            clocks: Some(apu_clocks(78)),
            throttlers: (content >= 2).then_some(120),
            scale: if content == 4 { 100 } else { 1 },
            ..layout(if content == 1 { 120 } else { 128 }, 28, 4)
        },
        (3, 0) => Layout {
            media_utilization: Some(44),
            ..layout(256, 42, 4)
        },
        _ => return None,
    };
    Some(layout)
}

/// Clocks of APUs with the first at this offset, which have UCLK and FCLK in between.
const fn apu_clocks(soc: usize) -> Clocks {
    Clocks {
        at: [soc, soc + 6, soc + 8],
        count: 1,
    }
}

/// Layout of Instinct accelerators, which differ in the offsets of the energy and the clocks.
const fn instinct(energy: usize, clocks: usize) -> Layout {
    Layout {
        memory_utilization: Some(14),
        hotspot: Some(4),
        memory: Some(6),
        regulators: [None, Some(8), None],
        clocks: Some(Clocks {
            at: [clocks, clocks + 8, clocks + 16],
            count: 4,
        }),
        energy: Some(energy),
        ..layout(energy + 8, 12, 4)
    }
}

/// Parses a complete table of a known version.
pub(super) fn parse(table: &[u8]) -> Option<Metrics> {
    let size = usize::from(word(table, 0)?);
    let (format, content) = (*table.get(2)?, *table.get(3)?);
    let layout = of_version(format, content, size)?;
    if size < layout.size || table.len() < size {
        return None;
    }
    let percent = |offset: usize| {
        let value = u64::from(word(table, offset).filter(|value| *value != u16::MAX)?);
        let value = (value + layout.scale / 2) / layout.scale;
        (value <= 100).then_some(value)
    };
    let table = &table[..size];
    let known = |offset| word(table, offset).filter(|value| *value != u16::MAX);
    let degrees = |offset| known(offset).map(|degrees| u64::from(degrees) / layout.scale);
    let clocks = |of: Clocks| {
        of.at.map(|at| {
            let mhz = (0..of.count).filter_map(|n| known(at + 2 * n)).max();
            mhz.map(|mhz| u64::from(mhz) * 1_000_000)
        })
    };
    let wide = |offset: usize| long(table, offset).filter(|value| *value != u64::MAX);
    // Before 1.4 the unit is known only for accelerators with HBM, which report HBM temperatures.
    let energy = match (format, content) {
        (1, 1..=3) => layout.energy.filter(|_| word(table, 88) != Some(u16::MAX)),
        _ => layout.energy,
    };
    Some(Metrics {
        utilization: percent(layout.utilization),
        memory_utilization: layout.memory_utilization.and_then(percent),
        media_utilization: layout.media_utilization.and_then(percent),
        temperature: degrees(layout.temperature),
        hotspot: layout.hotspot.and_then(degrees),
        memory: layout.memory.and_then(degrees),
        hbm: layout
            .hbm
            .and_then(|at| (0..4).filter_map(|n| degrees(at + 2 * n)).max()),
        regulators: layout.regulators.map(|at| at.and_then(degrees)),
        clocks: layout.clocks.map_or([None; 3], clocks),
        energy_uj: energy.and_then(wide).and_then(microjoules),
        throttlers: layout.throttlers.and_then(wide),
    })
}

/// Converts from 2^-16 J.
fn microjoules(units: u64) -> Option<u64> {
    u64::try_from((u128::from(units) * 1_000_000) >> 16).ok()
}

fn word(table: &[u8], offset: usize) -> Option<u16> {
    let bytes = table.get(offset..offset + 2)?;
    Some(u16::from_le_bytes(bytes.try_into().ok()?))
}

fn long(table: &[u8], offset: usize) -> Option<u64> {
    let bytes = table.get(offset..offset + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// `SMU_THROTTLER_*_BIT` of drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h.
const THROTTLERS: [(u8, &str); 27] = [
    (0, "ppt0"),
    (1, "ppt1"),
    (2, "ppt2"),
    (3, "ppt3"),
    (4, "spl"),
    (5, "fppt"),
    (6, "sppt"),
    (7, "sppt_apu"),
    (16, "tdc_gfx"),
    (17, "tdc_soc"),
    (18, "tdc_mem"),
    (19, "tdc_vdd"),
    (20, "tdc_cvip"),
    (21, "edc_cpu"),
    (22, "edc_gfx"),
    (23, "apcc"),
    (32, "temp_gpu"),
    (33, "temp_core"),
    (34, "temp_mem"),
    (35, "temp_edge"),
    (36, "temp_hotspot"),
    (37, "temp_soc"),
    (38, "temp_vr_gfx"),
    (39, "temp_vr_soc"),
    (40, "temp_vr_mem0"),
    (41, "temp_vr_mem1"),
    (42, "temp_liquid0"),
];

/// Names of the set bits, joined.
pub(super) fn throttlers(bits: u64) -> Label {
    named(bits, THROTTLERS.map(|(bit, name)| (1 << bit, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table in which no value is available.
    fn table(format: u8, content: u8, size: u16) -> Vec<u8> {
        let mut table = vec![0xff; usize::from(size)];
        table[..2].copy_from_slice(&size.to_le_bytes());
        table[2..4].copy_from_slice(&[format, content]);
        table
    }

    const VERSIONS: [(u8, u8, u16); 16] = [
        (1, 0, 80),
        (1, 1, 96),
        (1, 2, 104),
        (1, 3, 120),
        (1, 4, 280),
        (1, 5, 352),
        (1, 6, 1664),
        (1, 7, 2208),
        (1, 8, 4000),
        (2, 0, 112),
        (2, 1, 120),
        (2, 2, 128),
        (2, 3, 152),
        (2, 4, 164),
        (3, 0, 264),
        (1, 6, 400),
    ];

    #[test]
    fn unavailable_values_are_null_in_every_version() {
        for (format, content, size) in VERSIONS {
            let found = parse(&table(format, content, size));
            let expected = (size != 400).then(Metrics::default);
            assert_eq!(found, expected, "{format}.{content}");
        }
    }

    #[test]
    fn truncated_and_unknown_tables_are_ignored() {
        for (format, content, size) in VERSIONS {
            let whole = table(format, content, size);
            for length in 0..whole.len() {
                assert_eq!(
                    parse(&whole[..length]),
                    None,
                    "{format}.{content}: {length}"
                );
            }
        }
        for (format, content) in [(0, 0), (1, 9), (2, 5), (4, 0), (255, 255)] {
            assert_eq!(parse(&table(format, content, 4096)), None);
        }
        assert_eq!(parse(&table(1, 3, 16)), None, "a size that is too small");
    }

    #[test]
    fn energy_is_converted_to_microjoules() {
        assert_eq!(microjoules(1 << 16), Some(1_000_000));
        assert_eq!(microjoules(1), Some(15));
        assert_eq!(microjoules(u64::MAX - 1), None);
    }

    #[test]
    fn throttlers_have_names() {
        assert_eq!(throttlers(0).as_str(), "none");
        assert_eq!(throttlers(1 | 1 << 36).as_str(), "ppt0+temp_hotspot");
        assert_eq!(throttlers(1 << 63).as_str(), "unknown");
    }
}
