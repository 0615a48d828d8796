//! The kernel's names of the disks that have block I/O: also of those without a device node (paths of NVMe
//! multipath), and of those that are gone.

use std::sync::Arc;

use hashbrown::HashMap;
use profiler_ebpf::per_key::DiskName;

use crate::bpf::{LoadError, Programs, Table};

/// Names by device number: major << 20 | minor.
#[derive(Default)]
pub struct Disks {
    map: Option<Table<u64, DiskName>>,
    names: HashMap<u64, Arc<str>>,
}

impl Disks {
    /// The map of the programs.
    ///
    /// # Errors
    ///
    /// When the object lacks it.
    pub fn open(programs: &mut Programs) -> Result<Self, LoadError> {
        Ok(Self {
            map: Some(programs.table("DISKS")?),
            names: HashMap::new(),
        })
    }

    /// Reads the names; a number may have become another disk's.
    pub(super) fn refresh(&mut self) -> Result<(), LoadError> {
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

    /// `gendisk.disk_name`: `nvme0n1`, `dm-0`.
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
    use profiler_ebpf::per_key::DiskName;

    use super::text;

    #[test]
    fn a_name_ends_at_its_zero_byte() {
        let mut name = DiskName::default();
        name.name[0] = u64::from_ne_bytes(*b"nvme0n1\0");
        assert_eq!(text(&name), "nvme0n1");
        name.name = [u64::from_ne_bytes(*b"abcdefgh"); 4];
        assert_eq!(text(&name).len(), 32);
    }
}
