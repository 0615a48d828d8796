//! Kernel, distribution and hypervisor.

use std::{collections::BTreeMap, path::Path};

use super::secrets;
use crate::host::{Host, names, selected, text};

#[derive(Debug, Default)]
pub(super) struct Software {
    pub(super) architecture: Option<String>,
    pub(super) system_vendor: Option<String>,
    pub(super) system_product: Option<String>,
    pub(super) hypervisor: Option<String>,
    pub(super) transparent_hugepages: Option<String>,
    pub(super) kernel_version: Option<String>,
    pub(super) kernel_cmdline: Option<String>,
    pub(super) distribution: Distribution,
    pub(super) mitigations: BTreeMap<String, String>,
    pub(super) clocksource: Option<String>,
}

impl Software {
    /// Reads all facts; `is_virtual` is what the CPU reports.
    pub(super) fn read(host: &Host, is_virtual: Option<bool>) -> Self {
        let (procfs, sysfs) = (&host.procfs, &host.sysfs);
        let dmi = |file: &str| text(&sysfs.join("class/dmi/id").join(file));
        let clocks = sysfs.join("devices/system/clocksource/clocksource0");
        let vulnerabilities = sysfs.join("devices/system/cpu/vulnerabilities");
        let mitigations = names(&vulnerabilities, "").into_iter();
        let huge = text(&sysfs.join("kernel/mm/transparent_hugepage/enabled"));
        let system_vendor = dmi("sys_vendor");
        let system_product =
            dmi("product_name").or_else(|| text(&sysfs.join("firmware/devicetree/base/model")));
        Self {
            // The file exists since kernel 6.1; uname(2) reports the architecture of this program.
            architecture: text(&procfs.join("sys/kernel/arch")).or_else(|| {
                Some(
                    rustix::system::uname()
                        .machine()
                        .to_string_lossy()
                        .into_owned(),
                )
            }),
            hypervisor: hypervisor(
                is_virtual,
                text(&sysfs.join("hypervisor/type")),
                &format!(
                    "{} {}",
                    system_vendor.as_deref().unwrap_or_default(),
                    system_product.as_deref().unwrap_or_default()
                ),
                &text(&clocks.join("available_clocksource")).unwrap_or_default(),
            ),
            transparent_hugepages: huge.and_then(|modes| selected(&modes).map(str::to_owned)),
            kernel_version: text(&procfs.join("sys/kernel/version")),
            kernel_cmdline: text(&procfs.join("cmdline")).map(|line| secrets::hidden(&line)),
            distribution: Distribution::read(procfs),
            mitigations: mitigations
                .filter_map(|name| Some((name.clone(), text(&vulnerabilities.join(name))?)))
                .collect(),
            clocksource: text(&clocks.join("current_clocksource")),
            system_vendor,
            system_product,
        }
    }
}

/// `os-release(5)`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Distribution {
    pub(super) name: Option<String>,
    pub(super) id: Option<String>,
    pub(super) version: Option<String>,
}

impl Distribution {
    /// Distribution of the file system that contains procfs: with `/host/proc`, that of the node
    /// and not of the container.
    fn read(procfs: &Path) -> Self {
        let root = procfs.parent().unwrap_or(Path::new("/"));
        let release =
            text(&root.join("etc/os-release")).or_else(|| text(&root.join("usr/lib/os-release")));
        Self::parse(&release.unwrap_or_default())
    }

    fn parse(release: &str) -> Self {
        let mut distribution = Self::default();
        for line in release.lines() {
            let Some((name, value)) = line.split_once('=') else {
                continue;
            };
            let fact = match name.trim() {
                "PRETTY_NAME" => &mut distribution.name,
                "ID" => &mut distribution.id,
                "VERSION_ID" => &mut distribution.version,
                _ => continue,
            };
            let value = value.trim().trim_matches(['"', '\'']);
            *fact = (!value.is_empty()).then(|| value.to_owned());
        }
        distribution
    }
}

/// Parts of vendor and product names with the hypervisor they indicate, in order of preference.
const PRODUCTS: [(&str, &str); 15] = [
    ("Amazon EC2", "amazon"),
    ("Google Compute Engine", "google"),
    ("Alibaba Cloud", "alibaba"),
    ("Microsoft Corporation Virtual Machine", "microsoft"),
    ("VMware", "vmware"),
    ("VirtualBox", "oracle"),
    ("Parallels", "parallels"),
    ("Apple Virtualization", "apple"),
    ("BHYVE", "bhyve"),
    ("Nutanix", "nutanix"),
    ("Xen", "xen"),
    ("OpenStack", "kvm"),
    ("KubeVirt", "kvm"),
    ("KVM", "kvm"),
    ("QEMU", "qemu"),
];

/// Hypervisor of this machine; `None` on bare metal.
fn hypervisor(
    is_virtual: Option<bool>,
    type_in_sysfs: Option<String>,
    product: &str,
    clocks: &str,
) -> Option<String> {
    // Bare-metal machines of Amazon are called "Amazon EC2 m7i.metal-24xl".
    if is_virtual == Some(false) || product.contains("metal") {
        return None;
    }
    let by_product = || {
        let known = PRODUCTS.iter().find(|(word, _)| product.contains(word))?;
        Some(known.1.to_owned())
    };
    let by_clock = || {
        let clocks = [
            ("kvm-clock", "kvm"),
            ("hyperv_clocksource", "microsoft"),
            ("xen", "xen"),
        ]
        .into_iter()
        .find(|(clock, _)| clocks.contains(clock));
        clocks.map(|(_, name)| name.to_owned())
    };
    let unknown = || is_virtual.map(|_| "unknown".to_owned());
    type_in_sysfs
        .or_else(by_product)
        .or_else(by_clock)
        .or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_release_has_shell_syntax() {
        let text = "NAME=x\nPRETTY_NAME=\"Rocky Linux 9.4 (Blue Onyx)\"\nID='rocky'\nVERSION_ID=9.4\n#\nID_LIKE=a";
        let expected = Distribution {
            name: Some("Rocky Linux 9.4 (Blue Onyx)".to_owned()),
            id: Some("rocky".to_owned()),
            version: Some("9.4".to_owned()),
        };
        assert_eq!(Distribution::parse(text), expected);
        assert_eq!(
            Distribution::parse("ID=\n\u{fffd}"),
            Distribution::default()
        );
    }

    #[test]
    fn hypervisors_are_found_by_several_facts() {
        let of = |is_virtual, product, clocks| hypervisor(is_virtual, None, product, clocks);
        assert_eq!(of(Some(false), "QEMU", ""), None);
        assert_eq!(of(Some(true), " ", "tsc kvm-clock").as_deref(), Some("kvm"));
        assert_eq!(
            of(Some(true), "Amazon EC2 m7i.large", "tsc").as_deref(),
            Some("amazon")
        );
        assert_eq!(of(None, "Amazon EC2 c7g.metal", ""), None);
        assert_eq!(
            of(None, "QEMU KVM Virtual Machine", "").as_deref(),
            Some("kvm")
        );
        assert_eq!(of(None, "HPE ProLiant", "arch_sys_counter"), None);
        assert_eq!(of(Some(true), " ", "tsc").as_deref(), Some("unknown"));
        let xen = hypervisor(Some(true), Some("xen".to_owned()), "HVM domU", "xen");
        assert_eq!(xen.as_deref(), Some("xen"));
    }
}
