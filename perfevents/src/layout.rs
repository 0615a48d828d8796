//! Positions of the fields of a code in the kernel's drivers: the content of `format/` on machines
//! with the PMU.

use std::path::PathBuf;

use crate::{CORE_PMU, Device, Uarch};

type Positions = &'static [(&'static str, &'static str)];

/// arch/x86/events/intel/core.c
const INTEL: Positions = &[
    ("event", "config:0-7"),
    ("umask", "config:8-15"),
    ("edge", "config:18"),
    ("inv", "config:23"),
    ("cmask", "config:24-31"),
    ("offcore_rsp", "config1:0-63"),
];
/// arch/x86/events/amd/core.c
const AMD: Positions = &[
    ("event", "config:0-7,32-35"),
    ("umask", "config:8-15"),
    ("edge", "config:18"),
    ("inv", "config:23"),
    ("cmask", "config:24-31"),
];
/// arch/x86/events/amd/uncore.c
const AMD_DF: Positions = &[
    ("event", "config:0-7,32-35,59-60"),
    ("umask", "config:8-15"),
];
const AMD_DF_V2: Positions = &[
    ("event", "config:0-7,32-37"),
    ("umask", "config:8-15,24-27"),
];
const AMD_UMC: Positions = &[("event", "config:0-7"), ("rdwrmask", "config:8-9")];
/// arch/x86/events/intel/uncore_snbep.c, uncore_snb.c; arch/x86/events/rapl.c
const EVENT_AND_UMASK: Positions = &[("event", "config:0-7"), ("umask", "config:8-15")];
const WIDE_UMASK: Positions = &[("event", "config:0-7"), ("umask", "config:8-15,32-55")];
const EVENT: Positions = &[("event", "config:0-7")];
/// drivers/perf/arm_pmuv3.c
const ARM: Positions = &[("event", "config:0-15")];
/// drivers/perf/arm-cmn.c
const ARM_CMN: Positions = &[("type", "config:0-15"), ("eventid", "config:16-26")];
/// drivers/perf/arm_cspmu
const NVIDIA: Positions = &[("event", "config:0-31")];
const AMPERE: Positions = &[("event", "config:0-8")];
/// drivers/perf/thunderx2_pmu.c, drivers/perf/hisilicon/hisi_uncore_ddrc_pmu.c
const FIVE_BITS: Positions = &[("event", "config:0-4")];
/// arch/powerpc/perf/power9-pmu.c, power10-pmu.c
const POWER9: Positions = &[("event", "config:0-51")];
const POWER10: Positions = &[("event", "config:0-59")];

fn positions(uarch: &Uarch, pmu: &str) -> Option<Positions> {
    let x86 = uarch.matches.cpuid.first();
    Some(match (pmu, x86.map(|entry| entry.vendor.as_str())) {
        (CORE_PMU, Some("GenuineIntel")) => INTEL,
        (CORE_PMU, Some("AuthenticAMD")) => AMD,
        (CORE_PMU, None) if !uarch.matches.midr.is_empty() => ARM,
        (CORE_PMU, None) if uarch.id == "power9" => POWER9,
        (CORE_PMU, None) if !uarch.matches.pvr.is_empty() => POWER10,
        // Version 2 of AMD's performance monitoring came with Zen 4.
        ("amd_df", _) if ["zen1", "zen2", "zen3"].contains(&uarch.id.as_str()) => AMD_DF,
        ("amd_df", _) => AMD_DF_V2,
        ("amd_umc_*", _) => AMD_UMC,
        ("uncore_cha_*" | "uncore_upi_*", _) => WIDE_UMASK,
        (
            "amd_l3"
            | "uncore_edc_eclk_*"
            | "uncore_hbm_*"
            | "uncore_imc_*"
            | "uncore_imc_free_running_*",
            _,
        ) => EVENT_AND_UMASK,
        ("power" | "uncore_imc", _) => EVENT,
        ("arm_cmn_*", _) => ARM_CMN,
        ("nvidia_scf_pmu_*", _) => NVIDIA,
        ("ampere_mcu_pmu_*", _) => AMPERE,
        ("hisi_sccl*_ddrc*" | "uncore_dmc_*", _) => FIVE_BITS,
        _ => return None,
    })
}

impl Device {
    /// The PMU of another machine, as its driver describes it. `None` if the driver assigns the
    /// fields at run time.
    pub fn known(uarch: &Uarch, pmu: &str) -> Option<Self> {
        let format =
            |&(field, position): &(&str, &str)| Some((field.to_owned(), position.parse().ok()?));
        Some(Self {
            base: 0,
            name: pmu.to_owned(),
            kind: 0,
            formats: positions(uarch, pmu)?
                .iter()
                .map(format)
                .collect::<Option<_>>()?,
            directory: PathBuf::new(),
        })
    }
}
