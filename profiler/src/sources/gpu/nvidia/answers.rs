//! Answers of NVML. Values that a GPU does not have are null; failed calls are null and reported as
//! an error.

use nvml_wrapper::error::NvmlError;

/// Errors of the answers of one reading.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The first error.
    pub(super) error: Option<String>,
    /// Whether the GPU of the last call was removed.
    lost: bool,
}

impl Answers {
    /// The value of an answer, if it has one.
    pub(super) fn of<T>(&mut self, what: &str, answer: Result<T, NvmlError>) -> Option<T> {
        let error = match answer {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        if is_absence(&error) {
            return None;
        }
        self.lost |= matches!(error, NvmlError::GpuLost);
        self.error.get_or_insert_with(|| format!("{what}: {error}"));
        None
    }

    /// Whether a GPU was removed since the previous call.
    pub(super) fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }
}

/// Whether the GPU or its driver does not have the value, or the profiler may not read it.
fn is_absence(error: &NvmlError) -> bool {
    matches!(
        error,
        NvmlError::NotSupported
            | NvmlError::NoPermission
            | NvmlError::NotFound
            | NvmlError::NoData
            | NvmlError::FunctionNotFound
            | NvmlError::FailedToLoadSymbol(_)
            | NvmlError::InvalidArg
    )
}
