//! GPU performance monitoring (GPM): means over the interval, for Hopper and later.

use nvml_wrapper::{Device, GpmSample, Nvml, enums::gpm::GpmMetricId, gpm::gpm_metrics_get};

use super::{super::GpuRow, answers::Answers};

/// Previous sample of a GPU or MIG instance.
#[derive(Debug, Default)]
pub(super) struct Gpm {
    before: Option<GpmSample<'static>>,
    /// Determined at the first reading.
    supported: Option<bool>,
}

/// Rates of PCIe, bytes per second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    pub(super) pcie_tx: Option<f64>,
    pub(super) pcie_rx: Option<f64>,
}

const METRICS: [GpmMetricId; 9] = [
    GpmMetricId::SmUtil,
    GpmMetricId::SmOccupancy,
    GpmMetricId::AnyTensorUtil,
    GpmMetricId::DramBwUtil,
    GpmMetricId::Fp64Util,
    GpmMetricId::Fp32Util,
    GpmMetricId::Fp16Util,
    GpmMetricId::PcieTxPerSec,
    GpmMetricId::PcieRxPerSec,
];

impl Gpm {
    /// Reads the device or one of its instances, and stores the means since the previous reading.
    pub(super) fn read(
        &mut self,
        nvml: &'static Nvml,
        device: &Device<'static>,
        instance: Option<u32>,
        row: &mut GpuRow,
        answers: &mut Answers,
    ) -> Rates {
        let supported = self.supported.get_or_insert_with(|| {
            let answer = answers.of("GPM", device.gpm_support());
            answer.unwrap_or(false)
        });
        if !*supported {
            return Rates::default();
        }
        let sample = match instance {
            Some(id) => device.gpm_mig_sample(id),
            None => device.gpm_sample(),
        };
        let Some(sample) = answers.of("GPM sample", sample) else {
            self.before = None;
            return Rates::default();
        };
        let Some(before) = self.before.take() else {
            self.before = Some(sample);
            return Rates::default();
        };
        let metrics = answers.of(
            "GPM metrics",
            gpm_metrics_get(nvml, &before, &sample, &METRICS),
        );
        self.before = Some(sample);
        let mut values = [None; METRICS.len()];
        for (value, metric) in values.iter_mut().zip(metrics.into_iter().flatten()) {
            let metric = answers.of("GPM metric", metric).map(|metric| metric.value);
            *value = metric.filter(|value| value.is_finite() && *value >= 0.0);
        }
        let [sm, occupancy, tensor, dram, fp64, fp32, fp16, tx, rx] = values;
        let percent = |value: Option<f64>| value.filter(|value| *value <= 100.0);
        row.sm_activity_percent = percent(sm);
        row.sm_occupancy_percent = percent(occupancy);
        row.tensor_activity_percent = percent(tensor);
        row.dram_activity_percent = percent(dram);
        row.fp64_activity_percent = percent(fp64);
        row.fp32_activity_percent = percent(fp32);
        row.fp16_activity_percent = percent(fp16);
        // The unit is MiB/s (nvml.h).
        let bytes = |rate: f64| rate * f64::from(1 << 20);
        Rates {
            pcie_tx: tx.map(bytes),
            pcie_rx: rx.map(bytes),
        }
    }
}
