//! Cards in `/sys/class/drm`.

use std::path::PathBuf;

use super::super::GpuKey;
use crate::{
    host::{Host, names, text},
    schema::{Label, Timestamp},
};

/// Supported drivers, and their vendors.
const DRIVERS: [(&str, &str); 3] = [("amdgpu", "amd"), ("i915", "intel"), ("xe", "intel")];

/// A card of a supported driver.
#[derive(Clone, Debug)]
pub(in super::super) struct Card {
    /// N of `cardN`.
    pub(super) index: u32,
    /// N of `/dev/dri/renderDN`, also its minor number.
    pub(super) render_minor: Option<u32>,
    /// `/sys/class/drm/cardN`.
    pub(super) directory: PathBuf,
    /// `/sys/class/drm/cardN/device`.
    pub(super) device: PathBuf,
    pub(super) driver: String,
    pub(super) vendor: &'static str,
    pub(super) bdf: Option<String>,
    pub(super) uuid: Option<String>,
    name: Option<String>,
    /// Only of a driver that is not part of the kernel.
    pub(super) driver_version: Option<String>,
}

/// Cards of supported drivers, in the order of their numbers.
pub(in super::super) fn cards(host: &Host) -> Vec<Card> {
    let directory = host.sysfs.join("class/drm");
    let found = names(&directory, "card").into_iter().filter_map(|name| {
        // The directory also has connectors: card0-DP-1.
        let index: u32 = name.strip_prefix("card")?.parse().ok()?;
        let directory = directory.join(name);
        let device = directory.join("device");
        let uevent = text(&device.join("uevent"))?;
        let fact = |key: &str| {
            let mut lines = uevent.lines();
            lines.find_map(|line| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned()))
        };
        let driver = fact("DRIVER")?;
        let (_, vendor) = DRIVERS.iter().find(|(name, _)| *name == driver)?;
        let render = names(&device.join("drm"), "renderD").into_iter();
        let mut render = render.filter_map(|name| name.strip_prefix("renderD")?.parse().ok());
        Some(Card {
            index,
            render_minor: render.next(),
            driver_version: text(&host.sysfs.join("module").join(&driver).join("version")),
            driver,
            vendor,
            bdf: fact("PCI_SLOT_NAME"),
            uuid: text(&device.join("unique_id")),
            name: text(&device.join("product_name")),
            directory,
            device,
        })
    });
    found.collect()
}

impl Card {
    /// Unique name of the device.
    pub(super) fn id(&self) -> String {
        let bdf = self.bdf.as_deref().unwrap_or_default();
        format!("{} {bdf}", self.index)
    }

    /// Whether the card is suspended until it is used.
    pub(super) fn is_suspended(&self) -> bool {
        text(&self.device.join("power/runtime_status")).is_some_and(|status| status == "suspended")
    }

    /// Key of a row of this card.
    pub(super) fn key(&self, ts: Timestamp, interval_ns: u64) -> GpuKey {
        let label = |text: &Option<String>| text.clone().map(Label::from);
        GpuKey {
            ts,
            interval_ns,
            index: Some(self.index),
            uuid: label(&self.uuid),
            vendor: self.vendor.into(),
            driver: self.driver.clone().into(),
            name: label(&self.name),
            bdf: label(&self.bdf),
            parent_uuid: None,
            gpu_instance: None,
            compute_instance: None,
        }
    }
}
