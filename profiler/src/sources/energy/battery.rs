//! Power of a laptop on battery: `/sys/class/power_supply`
//! (Documentation/ABI/testing/sysfs-class-power). On external power it is unknown.

use std::path::Path;

use anyhow::{Context as _, Result, anyhow};

use super::{
    files::read_number,
    meter::{Domain, Gauge, Instrument, Meter, locked},
};
use crate::{
    host::{Host, names, text},
    procfs::file::{KernelFile, number},
};

/// One meter of all batteries together, if there are any.
pub(super) fn meters(host: &Host) -> Vec<Meter> {
    let directory = host.sysfs.join("class/power_supply");
    let mut batteries = Vec::new();
    let mut others = Vec::new();
    let mut problem = None;
    for name in names(&directory, "") {
        let supply = directory.join(name);
        // The battery of a mouse, for example.
        if text(&supply.join("scope")).as_deref() == Some("Device") {
            continue;
        }
        if text(&supply.join("type")).as_deref() != Some("Battery") {
            others.push(KernelFile::new(supply.join("online")));
        } else if let Some(battery) = Battery::find(&supply) {
            problem = problem.or_else(|| locked(battery.file()));
            batteries.push(battery);
        }
    }
    if batteries.is_empty() {
        return Vec::new();
    }
    vec![Meter {
        domain: Domain::of_node("node"),
        provider: "battery_power",
        instrument: Instrument::Gauge(Box::new(Batteries { batteries, others })),
        problem,
    }]
}

struct Batteries {
    batteries: Vec<Battery>,
    /// Other power supplies of the machine.
    others: Vec<KernelFile>,
}

struct Battery {
    status: KernelFile,
    power: Power,
}

enum Power {
    /// A file in µW.
    Direct(KernelFile),
    /// Files in µA and µV, which are multiplied.
    Product(KernelFile, KernelFile),
}

impl Battery {
    fn find(supply: &Path) -> Option<Self> {
        let file = |name| {
            let path = supply.join(name);
            path.exists().then(|| KernelFile::new(path))
        };
        let product = || Some(Power::Product(file("current_now")?, file("voltage_now")?));
        Some(Self {
            status: file("status")?,
            power: file("power_now").map(Power::Direct).or_else(product)?,
        })
    }

    fn file(&self) -> &Path {
        match &self.power {
            Power::Direct(file) | Power::Product(file, _) => file.path(),
        }
    }

    /// Power that the battery delivers, W.
    fn watts(&mut self) -> Result<f64> {
        match &mut self.power {
            Power::Direct(power) => Ok(magnitude(power)? as f64 / 1e6),
            Power::Product(current, voltage) => {
                Ok(magnitude(current)? as f64 * read_number(voltage)? as f64 / 1e12)
            }
        }
    }
}

impl Gauge for Batteries {
    fn watts(&mut self) -> Result<Option<f64>> {
        for other in &mut self.others {
            if read_number(other).is_ok_and(|online| online != 0) {
                return Ok(None);
            }
        }
        let mut sum = 0.0;
        for battery in &mut self.batteries {
            let path = battery.status.path().display().to_string();
            let status = battery.status.read().with_context(|| path.clone())?;
            match status.trim_ascii() {
                b"Discharging" => sum += battery.watts()?,
                // One of several batteries is not in use.
                b"Not charging" | b"Full" => {}
                b"" => return Err(anyhow!("{path}: empty")),
                // Also "Unknown": it may deliver power.
                _ => return Ok(None),
            }
        }
        // 0 means that the firmware has not measured yet.
        Ok((sum > 0.0).then_some(sum))
    }
}

/// Reads a number without its sign, by which some drivers indicate the direction.
fn magnitude(file: &mut KernelFile) -> Result<u64> {
    let value = match file.read() {
        Ok(text) => {
            let text = text.trim_ascii();
            number(text.strip_prefix(b"-").unwrap_or(text))
        }
        Err(error) => return Err(anyhow!("{}: {error}", file.path().display())),
    };
    value.with_context(|| format!("{}: no number", file.path().display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn power_is_known_if_each_battery_tells_its_part() {
        let directory = tempfile::tempdir().expect("a directory");
        let battery = |name: &str, power: &str| {
            let supply = directory.path().join(name);
            fs::create_dir(&supply).expect("a directory");
            fs::write(supply.join("status"), "Discharging\n").expect("written");
            fs::write(supply.join("power_now"), power).expect("written");
            Battery::find(&supply).expect("a battery")
        };
        let mut batteries = Batteries {
            batteries: vec![battery("BAT0", "5000000\n"), battery("BAT1", "-2000000\n")],
            others: Vec::new(),
        };
        for (status, watts) in [
            ("Discharging", Some(7.0)),
            ("Full", Some(5.0)),
            ("Not charging", Some(5.0)),
            ("Charging", None),
            ("Unknown", None),
            ("Holding", None),
        ] {
            let file = directory.path().join("BAT1/status");
            fs::write(file, format!("{status}\n")).expect("written");
            assert_eq!(batteries.watts().expect("files"), watts, "{status}");
        }
    }
}
