//! Power meters of ACPI (Documentation/hwmon/acpi_power_meter.rst): of the whole node in servers,
//! where the firmware reads the BMC through IPMI, and of the parts of each socket on NVIDIA's
//! Grace.

use super::{
    files::Power,
    hwmon::{self, ACPI_CHIP, Chip},
    meter::{Domain, Instrument, Meter, locked},
};
use crate::host::{number, text};

pub(super) fn meters(chips: &[Chip]) -> Vec<Meter> {
    let mut meters = Vec::new();
    for chip in chips.iter().filter(|chip| chip.is_acpi()) {
        for (power, file) in hwmon::powers(&chip.directory) {
            let fact = |name: &str| chip.directory.join(format!("power{power}_{name}"));
            if number::<u32>(&fact("is_battery")) == Some(1) {
                continue;
            }
            let oem_info = text(&fact("oem_info")).unwrap_or_default();
            meters.push(Meter {
                domain: domain(&oem_info),
                provider: "acpi_power",
                problem: locked(&file),
                instrument: Instrument::Gauge(Box::new(Power::new(file))),
            });
        }
    }
    let is_node = |meter: &Meter| meter.domain.name == "node";
    if meters.iter().filter(|meter| is_node(meter)).count() > 1 {
        // Several meters without a description: the one of the node is unknown.
        meters.retain(|meter| !is_node(meter));
    }
    meters
}

/// Domain of an OEM text such as `Grace Power Socket 1`. A text without a socket is a vendor name.
fn domain(oem_info: &str) -> Domain {
    let text = oem_info.to_ascii_lowercase();
    if !text.contains("socket") {
        return Domain::of_node("node");
    }
    let parts = text.rsplit_once(" power socket ");
    match parts.and_then(|(what, socket)| Some((what, socket.parse().ok()?))) {
        Some((what, socket)) => {
            let name = match what {
                "grace" | "total" => "package",
                "cpu" => "core",
                other => other,
            };
            Domain::of_socket(socket, name)
        }
        None => Domain::of_node(format!("{ACPI_CHIP} {oem_info}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oem_texts_are_mapped_to_domains() {
        for (oem_info, socket, name) in [
            ("Module Power Socket 0", Some(0), "module"),
            ("Grace Power Socket 1", Some(1), "package"),
            ("CPU Power Socket 0", Some(0), "core"),
            ("SysIO Power Socket 3", Some(3), "sysio"),
            ("DRAM Power socket 0", Some(0), "dram"),
            ("", None, "node"),
            ("Intel(R) Node Manager", None, "node"),
            (
                "Total Power in uW socket 0",
                None,
                "power_meter Total Power in uW socket 0",
            ),
            ("CPU Power Socket x", None, "power_meter CPU Power Socket x"),
        ] {
            let domain = domain(oem_info);
            assert_eq!((domain.socket, &*domain.name), (socket, name), "{oem_info}");
        }
    }
}
