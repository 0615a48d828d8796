//! The draw of a laptop that runs on its batteries: `/sys/class/power_supply`
//! (Documentation/ABI/testing/sysfs-class-power). On the mains nobody knows what it draws.

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

/// One meter, of all batteries together, if there are any.
pub(super) fn meters(host: &Host) -> Vec<Meter> {
    let directory = host.sysfs.join("class/power_supply");
    let mut batteries = Vec::new();
    let mut others = Vec::new();
    let mut problem = None;
    for name in names(&directory, "") {
        let supply = directory.join(name);
        // Of a mouse, not of the machine.
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
        domain: Domain::node_batches("node"),
        provider: "battery_power",
        instrument: Instrument::Gauge(Box::new(Batteries { batteries, others })),
        problem,
    }]
}

struct Batteries {
    batteries: Vec<Battery>,
    /// What else feeds the machine.
    others: Vec<KernelFile>,
}

struct Battery {
    status: KernelFile,
    power: Power,
}

enum Power {
    /// µW
    Told(KernelFile),
    /// µA and µV
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
            power: file("power_now").map(Power::Told).or_else(product)?,
        })
    }

    fn file(&self) -> &Path {
        match &self.power {
            Power::Told(file) | Power::Product(file, _) => file.path(),
        }
    }

    /// What it gives, W.
    fn watts(&mut self) -> Result<f64> {
        match &mut self.power {
            Power::Told(power) => Ok(magnitude(power)? as f64 / 1e6),
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
                b"Charging" => return Ok(None),
                b"" => return Err(anyhow!("{path}: empty")),
                // One of several rests.
                _ => {}
            }
        }
        // Nothing runs on nothing: firmware has not measured yet.
        Ok((sum > 0.0).then_some(sum))
    }
}

/// Some drivers have a sign for the direction.
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
