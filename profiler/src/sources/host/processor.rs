//! The CPU: `/proc/cpuinfo`, cpufreq, and the microarchitecture.

use std::path::Path;

use perfevents::{Catalog, CpuId, Uarch};

use crate::{
    host::{Fields, Host, cpu_ids, cpuinfo, names, number, text},
    sources::cpu::frequency::cpufreq,
};

/// Byte order, in the words of lscpu.
pub(super) const BYTE_ORDER: &str = if cfg!(target_endian = "little") {
    "Little Endian"
} else {
    "Big Endian"
};

/// Facts about the first CPU, and the microarchitectures of all kinds of cores.
#[derive(Debug, Default)]
pub(super) struct Processor {
    pub(super) vendor: Option<String>,
    pub(super) model_name: Option<String>,
    pub(super) family: Option<u32>,
    pub(super) model: Option<u32>,
    pub(super) stepping: Option<u32>,
    pub(super) midr: Option<u32>,
    pub(super) pvr: Option<u32>,
    pub(super) microarchitecture: Option<String>,
    pub(super) microcode: Option<String>,
    pub(super) flags: Option<String>,
    pub(super) op_modes: Option<String>,
    pub(super) address_sizes: Option<String>,
    pub(super) bogomips: Option<f64>,
    pub(super) base_frequency: Option<u64>,
    pub(super) min_frequency: Option<u64>,
    pub(super) max_frequency: Option<u64>,
    pub(super) cpufreq_driver: Option<String>,
    pub(super) cpufreq_governor: Option<String>,
}

impl Processor {
    pub(super) fn read(host: &Host) -> Self {
        let fields = cpuinfo(&host.procfs).into_iter().next().unwrap_or_default();
        let field = |names: &[&str]| names.iter().find_map(|name| word(&fields, name));
        let ids = cpu_ids(&host.procfs, &host.sysfs);
        let catalog = Catalog::builtin_of(&ids);
        let kinds: Vec<Vec<&Uarch>> = ids
            .iter()
            .map(|id| catalog.candidates(id).collect())
            .collect();
        let (min_frequency, max_frequency) = range(&host.sysfs);
        let first = cpufreq(&host.sysfs, 0);
        let mut processor = Self {
            vendor: field(&["vendor_id"]).or_else(|| Some(kinds.first()?.first()?.vendor.clone())),
            model_name: field(&["model name", "cpu"]),
            microarchitecture: microarchitecture(&kinds),
            microcode: field(&["microcode"]),
            op_modes: op_modes(&fields),
            address_sizes: field(&["address sizes"]),
            bogomips: field(&["bogomips", "BogoMIPS"]).and_then(|text| text.parse().ok()),
            flags: field(&["flags", "Features"]),
            base_frequency: base(&host.sysfs),
            min_frequency,
            max_frequency,
            cpufreq_driver: text(&first.join("scaling_driver")),
            cpufreq_governor: text(&first.join("scaling_governor")),
            ..Self::default()
        };
        match ids.first() {
            Some(CpuId::X86 { family, model, .. }) => {
                processor.family = Some(*family);
                processor.model = Some(*model);
                processor.stepping = field(&["stepping"]).and_then(|text| text.parse().ok());
            }
            Some(CpuId::Arm64 { midr }) => processor.midr = Some(*midr),
            Some(CpuId::Power { pvr }) => processor.pvr = Some(*pvr),
            None => {}
        }
        processor
    }

    /// Whether an x86 CPU reports that it is virtual; other CPUs do not report it.
    pub(super) fn is_virtual(&self) -> Option<bool> {
        self.family?;
        let flags = self.flags.as_ref()?;
        Some(flags.split_whitespace().any(|flag| flag == "hypervisor"))
    }
}

/// Word sizes, by the flags from which lscpu derives them.
fn op_modes(fields: &Fields) -> Option<String> {
    let flags = fields.get("flags")?;
    let has_long_mode = flags.split_whitespace().any(|flag| flag == "lm");
    Some(
        if has_long_mode {
            "32-bit, 64-bit"
        } else {
            "32-bit"
        }
        .to_owned(),
    )
}

fn word(fields: &Fields, name: &str) -> Option<String> {
    fields.get(name).filter(|value| !value.is_empty()).cloned()
}

/// `A + B` for two kinds of cores, `A or B` for one kind that can be either.
fn microarchitecture(kinds: &[Vec<&Uarch>]) -> Option<String> {
    let mut known: Vec<String> = Vec::new();
    for kind in kinds {
        let names: Vec<_> = kind.iter().map(|uarch| &uarch.name[..]).collect();
        let name = names.join(" or ");
        if !name.is_empty() && !known.contains(&name) {
            known.push(name);
        }
    }
    (!known.is_empty()).then(|| known.join(" + "))
}

/// Lowest and highest frequency of all frequency domains, Hz.
fn range(sysfs: &Path) -> (Option<u64>, Option<u64>) {
    let domains = sysfs.join("devices/system/cpu/cpufreq");
    let all = |file: &str| {
        let policies = names(&domains, "policy").into_iter();
        let khz: Vec<u64> = policies
            .filter_map(|policy| number(&domains.join(policy).join(file)))
            .filter(|&khz| khz > 0)
            .collect();
        khz
    };
    let hz = |khz: Option<u64>| khz?.checked_mul(1000);
    (
        hz(all("cpuinfo_min_freq").into_iter().min()),
        hz(all("cpuinfo_max_freq").into_iter().max()),
    )
}

/// Frequency without turbo, Hz: from Intel's driver (kHz) or the firmware (MHz).
fn base(sysfs: &Path) -> Option<u64> {
    let khz = number::<u64>(&cpufreq(sysfs, 0).join("base_frequency"));
    let mhz = || number::<u64>(&sysfs.join("devices/system/cpu/cpu0/acpi_cppc/nominal_freq"));
    khz.and_then(|khz| khz.checked_mul(1000))
        .or_else(|| mhz()?.checked_mul(1_000_000))
        .filter(|&hz| hz > 0)
}
