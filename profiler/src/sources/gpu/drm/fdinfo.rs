//! fdinfo of DRM clients (Documentation/gpu/drm-usage-stats.rst).

use std::collections::BTreeMap;

use crate::procfs::file::{lines, number, words};

/// A client, from one of its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Client {
    pub(super) driver: String,
    /// PCI address.
    pub(super) pdev: Option<String>,
    /// Unique for this device.
    pub(super) id: u64,
    /// Engines by name.
    pub(super) engines: BTreeMap<String, Engine>,
    /// Memory of the device, bytes.
    pub(super) device_memory: Option<u64>,
    /// Memory of the node, bytes.
    pub(super) system_memory: Option<u64>,
}

/// Counters of an engine since the client was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Engine {
    /// Busy time, ns.
    pub(super) busy_ns: Option<u64>,
    /// Busy cycles (xe).
    pub(super) cycles: Option<u64>,
    /// Elapsed cycles (xe).
    pub(super) total_cycles: Option<u64>,
    /// Number of identical engines.
    pub(super) capacity: Option<u64>,
}

/// Parses the text of a file; `None` if it has no DRM client, or one without an id.
pub(super) fn parse(text: &[u8]) -> Option<Client> {
    let mut client = Client::default();
    let mut id = None;
    // Older drivers call resident memory "memory".
    let mut resident: BTreeMap<String, u64> = BTreeMap::new();
    for line in lines(text) {
        let Some((key, value)) = pair(line) else {
            continue;
        };
        let words: Vec<_> = words(value).collect();
        let first = words.first().copied().unwrap_or_default();
        let count = number(first);
        let word = || Some(String::from_utf8_lossy(first).into_owned());
        match key {
            "driver" => client.driver = word()?,
            "pdev" => client.pdev = word(),
            "client-id" => id = count,
            _ => {
                if let Some(engine) = key.strip_prefix("engine-capacity-") {
                    client.engine(engine).capacity = count;
                } else if let Some(engine) = key.strip_prefix("engine-") {
                    let is_ns = words.get(1) == Some(&&b"ns"[..]);
                    client.engine(engine).busy_ns = count.filter(|_| is_ns);
                } else if let Some(engine) = key.strip_prefix("total-cycles-") {
                    client.engine(engine).total_cycles = count;
                } else if let Some(engine) = key.strip_prefix("cycles-") {
                    client.engine(engine).cycles = count;
                } else if let Some(region) = key.strip_prefix("resident-") {
                    if let Some(bytes) = bytes(count, words.get(1).copied()) {
                        resident.insert(region.to_owned(), bytes);
                    }
                } else if let Some(region) = key.strip_prefix("memory-")
                    && let Some(bytes) = bytes(count, words.get(1).copied())
                {
                    resident.entry(region.to_owned()).or_insert(bytes);
                }
            }
        }
    }
    if client.driver.is_empty() {
        return None;
    }
    client.id = id?;
    for (region, bytes) in resident {
        let sum = match region.as_str() {
            name if name.starts_with("vram") || name.contains("local") => &mut client.device_memory,
            name if ["gtt", "system", "cpu", "stolen"]
                .iter()
                .any(|prefix| name.starts_with(prefix)) =>
            {
                &mut client.system_memory
            }
            // Resources of a device that are not memory: gds, gws, oa, doorbell.
            _ => continue,
        };
        *sum = Some(sum.unwrap_or(0).saturating_add(bytes));
    }
    Some(client)
}

impl Client {
    fn engine(&mut self, name: &str) -> &mut Engine {
        self.engines.entry(name.to_owned()).or_default()
    }
}

/// Key and value of a line `drm-<key>:\t<value>`.
fn pair(line: &[u8]) -> Option<(&str, &[u8])> {
    let line = line.strip_prefix(b"drm-")?;
    let colon = line.iter().position(|byte| *byte == b':')?;
    Some((str::from_utf8(&line[..colon]).ok()?, &line[colon + 1..]))
}

fn bytes(count: Option<u64>, unit: Option<&[u8]>) -> Option<u64> {
    let unit = match unit {
        None => 1,
        Some(b"KiB") => 1 << 10,
        Some(b"MiB") => 1 << 20,
        Some(b"GiB") => 1 << 30,
        Some(_) => return None,
    };
    count?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMDGPU: &str = "pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t480\n\
        drm-driver:\tamdgpu\ndrm-client-id:\t17\ndrm-pdev:\t0000:03:00.0\npasid:\t32771\n\
        drm-memory-vram:\t1024 KiB\ndrm-memory-gtt:\t2 MiB\ndrm-memory-cpu:\t0 KiB\n\
        drm-resident-vram:\t512 KiB\ndrm-total-vram:\t4 GiB\ndrm-shared-vram:\t1 KiB\n\
        drm-engine-gfx:\t1000000 ns\ndrm-engine-compute:\t5 ns\ndrm-engine-capacity-compute:\t4\n";

    const XE: &str = "drm-driver:\txe\ndrm-client-id:\t3\ndrm-pdev:\t0000:00:02.0\n\
        drm-cycles-rcs:\t28257900\ndrm-total-cycles-rcs:\t7655183225\n\
        drm-total-system:\t0\ndrm-resident-system:\t4096\ndrm-resident-vram0:\t3 MiB\n";

    #[test]
    fn clients_of_several_drivers_are_parsed() {
        let amd = parse(AMDGPU.as_bytes()).unwrap();
        assert_eq!((amd.driver.as_str(), amd.id), ("amdgpu", 17));
        assert_eq!(amd.pdev.as_deref(), Some("0000:03:00.0"));
        assert_eq!(amd.device_memory, Some(512 << 10));
        assert_eq!(amd.system_memory, Some(2 << 20));
        assert_eq!(amd.engines["gfx"].busy_ns, Some(1_000_000));
        let compute = amd.engines["compute"];
        assert_eq!((compute.busy_ns, compute.capacity), (Some(5), Some(4)));
        assert_eq!(amd.engines.len(), 2);
        let xe = parse(XE.as_bytes()).unwrap();
        let rcs = xe.engines["rcs"];
        assert_eq!(
            (rcs.cycles, rcs.total_cycles),
            (Some(28_257_900), Some(7_655_183_225))
        );
        assert_eq!(xe.device_memory, Some(3 << 20));
        assert_eq!(xe.system_memory, Some(4096));
    }

    #[test]
    fn malformed_files_are_no_clients() {
        for text in [
            "",
            "pos:\t0\n",
            "drm-driver:\n",
            "drm-driver:\ti915\n",
            "drm-driver:\ti915\ndrm-client-id:\t-1\n",
            "drm-client-id:\t1\n",
            "drm-driver:\ti915\ndrm-client-id:\t1",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
        let odd = "drm-driver:\ti915\ndrm-client-id:\t1\ndrm-engine-render:\tmany ns\n\
            drm-engine-copy:\t5 ms\ndrm-memory-local0:\t99999999999999999 GiB\n\
            drm-resident-system0:\t5 parsec\ndrm-\n:\ndrm-:\n\u{fffd}\n";
        let client = parse(odd.as_bytes()).unwrap();
        assert_eq!((client.device_memory, client.system_memory), (None, None));
        assert!(
            client
                .engines
                .values()
                .all(|engine| engine.busy_ns.is_none())
        );
        for length in 0..AMDGPU.len() {
            let _ = parse(&AMDGPU.as_bytes()[..length]);
        }
    }
}
