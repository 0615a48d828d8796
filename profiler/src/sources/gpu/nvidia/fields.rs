//! Values that NVML returns by field id, several at once (`nvmlDeviceGetFieldValues`).

use nvml_wrapper::{Device, Nvml, error::NvmlError};
use nvml_wrapper_sys::bindings::{
    field_id::{
        NVML_FI_DEV_MEMORY_TEMP, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
        NVML_FI_DEV_PCIE_COUNT_TX_BYTES, NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT,
        NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, NVML_FI_DEV_PERF_POLICY_POWER,
        NVML_FI_DEV_PERF_POLICY_RELIABILITY, NVML_FI_DEV_PERF_POLICY_SYNC_BOOST,
        NVML_FI_DEV_PERF_POLICY_THERMAL, NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS,
        NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS,
    },
    nvmlFieldValue_t, nvmlReturn_enum_NVML_SUCCESS, nvmlValue_t,
    nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
    nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT, nvmlValueType_t,
};

/// A value and its width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// 32 bits: a counter wraps at 2^32.
    Narrow(u32),
    /// 64 bits.
    Wide(u64),
}

impl Value {
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Narrow(value) => value.into(),
            Self::Wide(value) => value,
        }
    }
}

/// The fields that are read.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fields {
    /// °C.
    pub(super) memory_temperature: Option<Value>,
    /// KiB sent over all links.
    pub(super) nvlink_tx: Option<Value>,
    /// KiB received over all links.
    pub(super) nvlink_rx: Option<Value>,
    /// Bytes sent.
    pub(super) pcie_tx: Option<Value>,
    /// Bytes received.
    pub(super) pcie_rx: Option<Value>,
    /// Time with reduced clocks, ns.
    pub(super) violations: Violations,
}

/// Time with clocks reduced for a reason, ns. The fields are those of
/// `nvmlDeviceGetViolationStatus`, which takes as long for one of them as this call for all.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Violations {
    pub(super) power: Option<Value>,
    pub(super) thermal: Option<Value>,
    pub(super) board_limit: Option<Value>,
    pub(super) reliability: Option<Value>,
    pub(super) sync_boost: Option<Value>,
    pub(super) low_utilization: Option<Value>,
    pub(super) application_clocks: Option<Value>,
    pub(super) base_clocks: Option<Value>,
}

/// Scope of all links together.
const ALL_LINKS: u32 = u32::MAX;

/// Reads all fields. The call of the wrapper has no scope, so this is that of the library.
pub(super) fn read(nvml: &Nvml, device: &Device<'_>) -> Result<Fields, NvmlError> {
    let wanted = [
        (NVML_FI_DEV_MEMORY_TEMP, 0),
        (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
        (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
        (NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0),
        (NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0),
        (NVML_FI_DEV_PERF_POLICY_POWER, 0),
        (NVML_FI_DEV_PERF_POLICY_THERMAL, 0),
        (NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, 0),
        (NVML_FI_DEV_PERF_POLICY_RELIABILITY, 0),
        (NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, 0),
        (NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION, 0),
        (NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS, 0),
        (NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS, 0),
    ];
    let mut values = wanted.map(|(id, scope)| nvmlFieldValue_t {
        fieldId: id,
        scopeId: scope,
        timestamp: 0,
        latencyUsec: 0,
        valueType: 0,
        // Remains if the library does not set it.
        nvmlReturn: nvml_wrapper_sys::bindings::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED,
        value: nvmlValue_t { ullVal: 0 },
    });
    let call = nvml.lib().nvmlDeviceGetFieldValues.as_ref();
    let call = call.map_err(|error| NvmlError::FailedToLoadSymbol(error.to_string()))?;
    let count = i32::try_from(values.len()).unwrap_or(0);
    // SAFETY: the handle belongs to this library, which stays loaded; the call writes to `count`
    // elements of `values`.
    let code = unsafe { call(device.handle(), count, values.as_mut_ptr()) };
    if code != nvmlReturn_enum_NVML_SUCCESS {
        return Err(code.into());
    }
    let values = values.map(|value| {
        let known = value.nvmlReturn == nvmlReturn_enum_NVML_SUCCESS;
        known
            .then(|| decode(value.valueType, value.value))
            .flatten()
    });
    let [
        memory_temperature,
        nvlink_tx,
        nvlink_rx,
        pcie_tx,
        pcie_rx,
        power,
        thermal,
        board_limit,
        reliability,
        sync_boost,
        low_utilization,
        application_clocks,
        base_clocks,
    ] = values;
    Ok(Fields {
        memory_temperature,
        nvlink_tx,
        nvlink_rx,
        pcie_tx,
        pcie_rx,
        violations: Violations {
            power,
            thermal,
            board_limit,
            reliability,
            sync_boost,
            low_utilization,
            application_clocks,
            base_clocks,
        },
    })
}

/// The value, if it is a whole number that is not negative.
#[expect(non_upper_case_globals, reason = "names of the library")]
fn decode(kind: nvmlValueType_t, value: nvmlValue_t) -> Option<Value> {
    // SAFETY: every bit pattern is a value of each of these types, and the union was zeroed before.
    unsafe {
        match kind {
            nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT => Some(Value::Narrow(value.uiVal)),
            nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_INT => {
                u32::try_from(value.siVal).ok().map(Value::Narrow)
            }
            nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_SHORT => {
                Some(Value::Narrow(value.usVal.into()))
            }
            nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG => Some(Value::Wide(value.ulVal)),
            nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG => {
                Some(Value::Wide(value.ullVal))
            }
            nvmlValueType_enum_NVML_VALUE_TYPE_SIGNED_LONG_LONG => {
                u64::try_from(value.sllVal).ok().map(Value::Wide)
            }
            _ => None,
        }
    }
}
