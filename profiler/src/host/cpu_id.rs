//! Identification of this machine's CPUs, by which event tables are selected.

use std::path::Path;

use perfevents::CpuId;

use super::{Fields, cpuinfo, names, text};

/// Core PMUs of hybrid processors, fastest cores first.
const KINDS: [&str; 3] = ["cpu_core", "cpu_atom", "cpu_lowpower"];

/// Each kind of core once; empty if unknown.
pub fn cpu_ids(procfs: &Path, sysfs: &Path) -> Vec<CpuId> {
    let mut ids: Vec<CpuId> = Vec::new();
    for fields in cpuinfo(procfs) {
        for id in candidates(&fields, sysfs) {
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
    }
    ids
}

/// Possible identities of a CPU with these fields of `/proc/cpuinfo`; several for hybrid
/// processors, whose kinds of cores have the same fields.
fn candidates(fields: &Fields, sysfs: &Path) -> Vec<CpuId> {
    let decimal = |name| fields.get(name)?.parse::<u32>().ok();
    if let (Some(vendor), Some(family), Some(model)) = (
        fields.get("vendor_id"),
        decimal("cpu family"),
        decimal("model"),
    ) {
        let id = |pmu| CpuId::X86 {
            vendor: vendor.clone(),
            family,
            model,
            stepping: decimal("stepping").unwrap_or(0),
            pmu,
        };
        let pmus = names(&sysfs.join("bus/event_source/devices"), "cpu");
        let kinds: Vec<_> = KINDS
            .iter()
            .filter(|kind| pmus.iter().any(|pmu| pmu == *kind))
            .map(|kind| id(Some((*kind).to_owned())))
            .collect();
        if !kinds.is_empty() {
            return kinds;
        }
        let only = pmus.into_iter().find(|pmu| pmu == "cpu");
        return vec![id(only)];
    }
    if let Some(id) = arm64(fields, sysfs) {
        return vec![id];
    }
    power(fields).into_iter().collect()
}

/// `MIDR_EL1`, composed of its fields or, if they are missing, of the first CPU in sysfs.
fn arm64(fields: &Fields, sysfs: &Path) -> Option<CpuId> {
    let hexadecimal = |name| u64::from_str_radix(fields.get(name)?.strip_prefix("0x")?, 16).ok();
    let from_fields = || {
        Some(CpuId::arm64(
            u8::try_from(hexadecimal("CPU implementer")?).ok()?,
            u8::try_from(hexadecimal("CPU variant")?).ok()?,
            u16::try_from(hexadecimal("CPU part")?).ok()?,
            fields.get("CPU revision")?.parse().ok()?,
        ))
    };
    let from_register = || {
        let register = "devices/system/cpu/cpu0/regs/identification/midr_el1";
        let midr = text(&sysfs.join(register))?;
        let midr = u64::from_str_radix(midr.strip_prefix("0x")?, 16).ok()?;
        u32::try_from(midr).ok().map(|midr| CpuId::Arm64 { midr })
    };
    from_fields().or_else(from_register)
}

/// Processor version register: `revision : 2.2 (pvr 004e 1202)`.
fn power(fields: &Fields) -> Option<CpuId> {
    let (_, pvr) = fields.get("revision")?.split_once("(pvr ")?;
    let (version, revision) = pvr.strip_suffix(')')?.split_once(' ')?;
    let half = |digits| u16::from_str_radix(digits, 16).ok().map(u32::from);
    Some(CpuId::Power {
        pvr: half(version)? << 16 | half(revision)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(lines: &[(&str, &str)]) -> Vec<CpuId> {
        let fields = lines
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        candidates(&fields.collect(), Path::new("/none"))
    }

    #[test]
    fn parses_each_architecture() {
        let x86 = [
            ("vendor_id", "AuthenticAMD"),
            ("cpu family", "25"),
            ("model", "17"),
            ("stepping", "1"),
        ];
        assert!(matches!(
            &ids(&x86)[..],
            [CpuId::X86 {
                family: 25,
                model: 17,
                stepping: 1,
                pmu: None,
                ..
            }]
        ));
        let arm = [
            ("CPU implementer", "0x41"),
            ("CPU variant", "0x3"),
            ("CPU part", "0xd0c"),
            ("CPU revision", "1"),
        ];
        assert_eq!(ids(&arm), [CpuId::Arm64 { midr: 0x413f_d0c1 }]);
        let power = [
            ("cpu", "POWER9, altivec supported"),
            ("revision", "2.2 (pvr 004e 1202)"),
        ];
        assert_eq!(ids(&power), [CpuId::Power { pvr: 0x004e_1202 }]);
        for malformed in [
            &[][..],
            &[("vendor_id", "X"), ("cpu family", "-1"), ("model", "1")],
            &[
                ("CPU implementer", "0x141"),
                ("CPU variant", "0x3"),
                ("CPU part", "0xd0c"),
                ("CPU revision", "1"),
            ],
            &[("revision", "(pvr )")],
        ] {
            assert_eq!(ids(malformed), [], "{malformed:?}");
        }
    }
}
