//! Answers of NVML: what a GPU does not have is null; what fails is null and counted.

use nvml_wrapper::error::NvmlError;

/// The answers of one reading.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// The first failure.
    pub(super) error: Option<String>,
    /// Whether the GPU that was asked last is no longer there.
    lost: bool,
}

impl Answers {
    /// The value, if there is one.
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

    /// Whether the GPU was lost since this was asked last.
    pub(super) fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }
}

/// Whether it is the GPU, its driver or our privilege that does not have it.
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
