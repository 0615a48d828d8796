//! Identification of a CPU.

/// Identification of a CPU, by architecture.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CpuId {
    /// x86: leaf 1 of `CPUID`, as `/proc/cpuinfo` prints it.
    X86 {
        /// `vendor_id`, for example `GenuineIntel`.
        vendor: String,
        /// `cpu family`.
        family: u32,
        /// `model`.
        model: u32,
        /// `stepping`.
        stepping: u32,
        /// The core PMU in sysfs: `cpu_core` or `cpu_atom` on a processor with several kinds of
        /// cores, whose other numbers are equal; otherwise `cpu`. `None` without a PMU.
        pmu: Option<String>,
    },
    /// arm64: the register `MIDR_EL1`.
    Arm64 {
        /// The register; `/sys/devices/system/cpu/cpu*/regs/identification/midr_el1`.
        midr: u32,
    },
    /// POWER: the processor version register.
    Power {
        /// The register; `pvr` in `/proc/cpuinfo`.
        pvr: u32,
    },
}

impl CpuId {
    /// `MIDR_EL1` from the fields that `/proc/cpuinfo` prints on arm64.
    pub fn arm64(implementer: u8, variant: u8, part: u16, revision: u8) -> Self {
        let architecture = 0xf;
        Self::Arm64 {
            midr: u32::from(implementer) << 24
                | u32::from(variant & 0xf) << 20
                | architecture << 16
                | u32::from(part & 0xfff) << 4
                | u32::from(revision & 0xf),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn midr_is_composed_of_its_fields() {
        // Neoverse N1 r3p1 of an Altra.
        assert_eq!(
            CpuId::arm64(0x41, 3, 0xd0c, 1),
            CpuId::Arm64 { midr: 0x413f_d0c1 }
        );
    }
}
