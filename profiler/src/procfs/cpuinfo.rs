//! `/proc/cpuinfo`.

use std::path::Path;

use procfs::{CpuInfo, FromRead as _};

/// The file; `None` if it is missing or has no fields.
pub(crate) fn read(procfs: &Path) -> Option<CpuInfo> {
    let text = std::fs::read(procfs.join("cpuinfo")).ok()?;
    let info = CpuInfo::from_read(&text[..]).ok()?;
    (0..info.num_cores())
        .any(|cpu| info.get_info(cpu).is_some_and(|fields| !fields.is_empty()))
        .then_some(info)
}
