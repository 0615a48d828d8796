//! The kernel's names of the disks that have block I/O. They include disks without a device node
//! (paths of NVMe multipath) and disks that were removed.

use std::sync::Arc;

use hashbrown::HashMap;
use profiler_ebpf::{
    maps::{self, DiskName, Named as _},
    per_key::BlockIo,
};

use crate::bpf::{BpfError, KernelMap, Programs};

/// Names of disks by [`device`](profiler_ebpf::per_key::block::device).
#[derive(Default)]
pub struct Disks {
    map: Option<KernelMap<u64, DiskName>>,
    names: HashMap<u64, Arc<str>>,
}

impl Disks {
    /// Opens the map, if attached programs count block I/O.
    ///
    /// # Errors
    ///
    /// When the object does not have it.
    pub fn open(programs: &mut Programs) -> Result<Self, BpfError> {
        let is_filled = programs.fills(BlockIo::NAME);
        Ok(Self {
            map: is_filled
                .then(|| programs.map::<maps::Disks>())
                .transpose()?,
            names: HashMap::new(),
        })
    }

    /// Reads the names. A number can have been reused for another disk.
    pub(super) fn refresh(&mut self) -> Result<(), BpfError> {
        let Some(map) = &mut self.map else {
            return Ok(());
        };
        let names = &mut self.names;
        map.for_each(|device, name| {
            let name = text(name);
            if names.get(&device).is_none_or(|known| **known != *name) {
                names.insert(device, name.into());
            }
        })
    }

    /// `gendisk.disk_name`, such as `nvme0n1` or `dm-0`.
    pub fn name(&self, device: u64) -> Option<&Arc<str>> {
        self.names.get(&device)
    }
}

fn text(name: &DiskName) -> String {
    let bytes: Vec<u8> = name
        .name
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .take_while(|byte| *byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use profiler_ebpf::maps::DiskName;

    use super::text;

    #[test]
    fn a_name_ends_at_its_nul() {
        let mut name = DiskName::default();
        name.name[0] = u64::from_ne_bytes(*b"nvme0n1\0");
        assert_eq!(text(&name), "nvme0n1");
        name.name = [u64::from_ne_bytes(*b"abcdefgh"); 4];
        assert_eq!(text(&name).len(), 32);
    }
}
