//! `nv_gpu_metrics`: each GPU as a host `gpu-INDEX.HOST`.

use super::{
    Export,
    cpu::groups,
    figure,
    samples::{
        Block,
        Kind::{self, Gauge, Rate, Total},
    },
};
use crate::{analysis::perfmon::OF_GPUS, export::series::Column};

/// Key, header in data frames, figure, kind.
const QUANTITIES: [(&str, &str, &str, Kind); 18] = [
    (
        "clock_info.graphics",
        "Clock graphics [MHz]",
        "graphics_clock",
        Gauge,
    ),
    ("clock_info.sm", "Clock SM [MHz]", "sm_clock", Gauge),
    (
        "clock_info.memory",
        "Clock memory [MHz]",
        "memory_clock",
        Gauge,
    ),
    (
        "ecc_errors.sp",
        "ECC corrected errors",
        "ecc_corrected",
        Gauge,
    ),
    (
        "ecc_errors.dp",
        "ECC uncorrected errors",
        "ecc_uncorrected",
        Gauge,
    ),
    (
        "memory_used.gpu_memory",
        "GPU memory [bytes]",
        "memory_used",
        Gauge,
    ),
    (
        "memory_used.bar1_memory",
        "BAR1 memory [bytes]",
        "bar1_used",
        Gauge,
    ),
    (
        "utilization_rates.gpu",
        "GPU utilization [%]",
        "utilization",
        Gauge,
    ),
    (
        "utilization_rates.memory",
        "GPU memory utilization [%]",
        "memory_utilization",
        Gauge,
    ),
    (
        "encoder_util",
        "Encoder utilization [%]",
        "encoder_utilization",
        Gauge,
    ),
    (
        "decoder_util",
        "Decoder utilization [%]",
        "decoder_utilization",
        Gauge,
    ),
    ("power_usage", "Power [mW]", "power", Gauge),
    ("violation", "Clock violation [ns]", "violation", Total),
    ("temperature", "Temperature [C]", "temperature", Gauge),
    ("fan_speed", "Fan speed [%]", "fan", Gauge),
    ("num_procs", "GPU processes", "processes", Gauge),
    ("pci_thgpt.send", "PCIe sent [KB/s]", "pcie_tx_bytes", Rate),
    ("pci_thgpt.recv", "PCIe recv [KB/s]", "pcie_rx_bytes", Rate),
];

const BY_INDEX: &[&str] = &["index"];

/// A block for each GPU.
pub fn blocks(export: &mut Export<'_>) -> Vec<Block> {
    let run = export.run;
    let presence = figure(OF_GPUS, "readings");
    let mut blocks = Vec::new();
    for (number, host) in run.hosts.iter().enumerate() {
        for index in groups(run, host, &presence, BY_INDEX, &mut export.failures) {
            let of = |name: &str| Column::of_group(figure(OF_GPUS, name), BY_INDEX, &index);
            let name = format!("gpu-{index}.{}", host.name);
            let mut block = Block::new(number, name, of("readings"));
            for (path, header, name, kind) in QUANTITIES {
                let quantity = block.add(path, header, kind, of(name));
                if kind == Rate {
                    quantity.factor = 1e-3;
                }
            }
            blocks.push(block);
        }
    }
    blocks
}
