//! Sensors of the hardware monitoring framework (Documentation/hwmon/sysfs-interface.rst): counters
//! of energy and gauges of power. `amd_energy` counts sockets and cores; the meters of ACPI are in
//! `acpi`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{
    files::{Energies, Power},
    meter::{Domain, Instrument, Limits, Meter, locked, unreadable},
};
use crate::host::{Host, names, number, text};

/// Drivers of GPUs, for buses without a device class. The energy of GPUs is in another table.
const GPUS: [&str; 5] = ["amdgpu", "radeon", "nouveau", "i915", "xe"];

/// Chips of the driver for the power meters of ACPI.
pub(super) const ACPI_CHIP: &str = "power_meter";

/// A chip with sensors.
pub(super) struct Chip {
    /// Directory of its attributes.
    pub(super) directory: PathBuf,
    /// Name of its driver.
    name: String,
    /// Name of its device, which distinguishes chips with the same driver.
    pub(super) device: String,
}

/// All chips except those of GPUs.
pub(super) fn chips(host: &Host) -> Vec<Chip> {
    let class = host.sysfs.join("class/hwmon");
    let chips = names(&class, "hwmon").into_iter().filter_map(|name| {
        // After a hot plug, another chip may have the same number: use the path of the device.
        let chip = class.join(name).canonicalize().ok()?;
        let device = chip.join("device");
        let class: String = text(&device.join("class")).unwrap_or_default();
        let name = text(&chip.join("name")).or_else(|| text(&device.join("name")))?;
        // Older drivers have their attributes in the directory of the device.
        let directories = [chip, device.clone()];
        let directory = directories
            .into_iter()
            .find(|directory| has_sensors(directory))?;
        // PCI class of display controllers.
        let is_gpu = GPUS.contains(&name.as_str()) || class.starts_with("0x03");
        let device = device.canonicalize().unwrap_or_else(|_| directory.clone());
        (!is_gpu).then_some(Chip {
            device: device.file_name()?.to_str()?.to_owned(),
            directory,
            name,
        })
    });
    chips.collect()
}

fn has_sensors(directory: &Path) -> bool {
    attributes(directory, "energy", "input").next().is_some() || !powers(directory).is_empty()
}

/// Meters of the chips: counters of energy, then gauges of power.
pub(super) fn meters(host: &Host, chips: &[Chip]) -> Vec<Meter> {
    let mut meters = Vec::new();
    let others = || chips.iter().filter(|chip| chip.name != ACPI_CHIP);
    for chip in others() {
        for (domain, files) in counters(host, chips, chip) {
            let remedy = format!(
                "sudo, or: chmod a+r {}/energy*_input",
                chip.directory.display()
            );
            let problem = files.iter().find_map(|file| unreadable(file, &remedy));
            meters.push(Meter {
                domain,
                provider: "hwmon",
                instrument: Instrument::Counter(Box::new(Energies::new(files)), Limits::default()),
                problem,
            });
        }
    }
    for chip in others() {
        for (number, file) in powers(&chip.directory) {
            let domain = Domain::of_node(chip.sensor(chips, "power", number));
            meters.push(Meter {
                domain,
                provider: "hwmon_power",
                problem: locked(&file),
                instrument: Instrument::Gauge(Box::new(Power::new(file))),
            });
        }
    }
    meters
}

/// Files of the energy counters of a chip, by domain.
fn counters(host: &Host, chips: &[Chip], chip: &Chip) -> BTreeMap<Domain, Vec<PathBuf>> {
    let mut counters: BTreeMap<Domain, Vec<PathBuf>> = BTreeMap::new();
    for (number, file) in attributes(&chip.directory, "energy", "input") {
        let domain = if chip.name == "amd_energy" {
            let label = text(&chip.directory.join(format!("energy{number}_label")));
            label.and_then(|label| of_amd(host, &label))
        } else {
            Some(Domain::of_node(chip.sensor(chips, "energy", number)))
        };
        if let Some(domain) = domain {
            counters.entry(domain).or_default().push(file);
        }
    }
    counters
}

/// Domain of a label of `amd_energy`: `Esocket0` is a package, `Ecore017` the core of CPU 17; the
/// cores of a socket are added.
fn of_amd(host: &Host, label: &str) -> Option<Domain> {
    if let Some(socket) = label.strip_prefix("Esocket") {
        return Some(Domain::of_socket(socket.parse().ok()?, "package"));
    }
    let cpu: u32 = label.strip_prefix("Ecore")?.parse().ok()?;
    let topology = format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id");
    Some(Domain::of_socket(
        number(&host.sysfs.join(topology))?,
        "core",
    ))
}

/// File of each power sensor: the average of the chip if it has one, else its last measurement.
pub(super) fn powers(directory: &Path) -> BTreeMap<u32, PathBuf> {
    let mut powers: BTreeMap<_, _> = attributes(directory, "power", "input").collect();
    powers.extend(attributes(directory, "power", "average"));
    powers
}

/// Files such as `energy3_input`, with the number of the sensor.
fn attributes<'a>(
    directory: &'a Path,
    kind: &'a str,
    suffix: &'a str,
) -> impl Iterator<Item = (u32, PathBuf)> + 'a {
    names(directory, kind).into_iter().filter_map(move |name| {
        let (number, rest) = name.strip_prefix(kind)?.split_once('_')?;
        (rest == suffix).then_some((number.parse().ok()?, directory.join(&name)))
    })
}

impl Chip {
    /// Whether the chip is a power meter of ACPI.
    pub(super) fn is_acpi(&self) -> bool {
        self.name == ACPI_CHIP
    }

    /// Name of one of its sensors: driver, device if the driver has several, and label or number of
    /// the sensor.
    fn sensor(&self, chips: &[Chip], kind: &str, number: u32) -> String {
        let several = chips.iter().filter(|chip| chip.name == self.name).count() > 1;
        let chip = if several {
            format!("{} {}", self.name, self.device)
        } else {
            self.name.clone()
        };
        let label = text(&self.directory.join(format!("{kind}{number}_label")));
        format!("{chip} {}", label.unwrap_or_else(|| number.to_string()))
    }
}
