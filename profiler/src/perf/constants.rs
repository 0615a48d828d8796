//! Constants of the machine that formulas can use (`perfevents::CONSTANTS`).

use std::collections::BTreeSet;

use perfevents::{CORE_PMU, Device};

use crate::host::{Host, number};

use super::cpus::Cpu;

/// Values that do not change during a run; `None` if unknown.
#[derive(Clone, Debug, Default)]
pub struct Constants {
    sockets: Option<f64>,
    numa: Option<f64>,
    cores: Option<f64>,
    cpus: Option<f64>,
    smt: Option<f64>,
    tsc_hz: Option<f64>,
    base_hz: Option<f64>,
    slots: Option<f64>,
    sve_bits: Option<f64>,
    line_size: Option<f64>,
}

impl Constants {
    /// Reads the constants from CPUID, procfs and sysfs.
    pub(super) fn read(host: &Host, cpus: &[Cpu]) -> Self {
        let count = |id: fn(&Cpu) -> (u32, u32)| {
            let ids: BTreeSet<_> = cpus.iter().map(id).collect();
            (!ids.is_empty()).then_some(ids.len() as f64)
        };
        let directory = host.sysfs.join("devices/system/cpu/cpu0");
        let file = |name: &str| number::<f64>(&directory.join(name));
        let (cores, cpu_count) = (
            count(|cpu| (cpu.socket, cpu.core)),
            count(|cpu| (cpu.number, 0)),
        );
        let sve = host.procfs.join("sys/abi/sve_default_vector_length");
        Self {
            sockets: count(|cpu| (cpu.socket, 0)),
            numa: count(|cpu| (cpu.node, 0)),
            cores,
            cpus: cpu_count,
            smt: cores
                .zip(cpu_count)
                .map(|(cores, cpus)| f64::from(u8::from(cpus > cores))),
            tsc_hz: tsc_hz(),
            base_hz: file("cpufreq/base_frequency").map(|khz| khz * 1000.0),
            slots: Device::all(&host.sysfs, CORE_PMU)
                .first()
                .and_then(|device| device.capability("slots"))
                .filter(|slots| *slots != 0)
                .map(|slots| slots as f64),
            sve_bits: number::<f64>(&sve).map(|bytes| bytes * 8.0),
            line_size: file("cache/index0/coherency_line_size"),
        }
    }

    /// Whether cores have several hardware threads.
    pub fn has_smt(&self) -> bool {
        self.smt.is_some_and(|smt| smt > 0.0)
    }

    /// A constant by name. The constant `time` is the length of the interval in `seconds`.
    pub fn get(&self, name: &str, seconds: f64) -> Option<f64> {
        match name {
            "time" => Some(seconds),
            "num_sockets" => self.sockets,
            "num_numa" => self.numa,
            "num_cores" => self.cores,
            "num_cpus" => self.cpus,
            "smt" => self.smt,
            "tsc_hz" => self.tsc_hz,
            "base_hz" => self.base_hz,
            "slots" => self.slots,
            "sve_bits" => self.sve_bits,
            "line_size" => self.line_size,
            _ => None,
        }
    }
}

/// Frequency of the time-stamp counter from CPUID leaf 0x15 (Intel SDM, volume 2A), which most
/// processors of other vendors lack.
#[cfg(target_arch = "x86_64")]
fn tsc_hz() -> Option<f64> {
    use std::arch::x86_64::{__cpuid, __get_cpuid_max};
    const TSC: u32 = 0x15;
    #[expect(unused_unsafe, reason = "they are unsafe in Rust 1.88")]
    let leaf = {
        // SAFETY: all processors with 64 bits have the instruction.
        let (last, _) = unsafe { __get_cpuid_max(0) };
        if last < TSC {
            return None;
        }
        // SAFETY: as above.
        unsafe { __cpuid(TSC) }
    };
    let is_known = leaf.eax != 0 && leaf.ebx != 0 && leaf.ecx != 0;
    is_known.then(|| f64::from(leaf.ecx) * f64::from(leaf.ebx) / f64::from(leaf.eax))
}

#[cfg(not(target_arch = "x86_64"))]
fn tsc_hz() -> Option<f64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_of_the_formulas_exists() {
        let all = Constants {
            sockets: Some(1.0),
            numa: Some(1.0),
            cores: Some(1.0),
            cpus: Some(1.0),
            smt: Some(1.0),
            tsc_hz: Some(1.0),
            base_hz: Some(1.0),
            slots: Some(1.0),
            sve_bits: Some(1.0),
            line_size: Some(1.0),
        };
        for name in perfevents::CONSTANTS {
            assert!(all.get(name, 1.0).is_some(), "{name}");
        }
        assert_eq!(all.get("x", 1.0), None);
    }
}
