//! Regions behind the drawings.

use std::collections::BTreeMap;

use super::over_time::{OverTime, Region};
use crate::charts::Band;

/// Regions that are shown behind drawings.
const BANDS: usize = 100;

/// Number of the colour of each region, by name.
pub fn colours(over_time: &OverTime) -> BTreeMap<&str, usize> {
    let mut colours = BTreeMap::new();
    let regions = over_time.hosts.iter().flat_map(|host| &host.regions);
    for region in regions {
        let next = colours.len();
        colours.entry(region.name.as_str()).or_insert(next);
    }
    colours
}

/// The outermost regions of the first node that has any. Others would hide one another.
pub fn bands(over_time: &OverTime) -> Vec<Band> {
    let colours = colours(over_time);
    let mut hosts = over_time.hosts.iter();
    let Some(host) = hosts.find(|host| !host.regions.is_empty()) else {
        return Vec::new();
    };
    let end = |region: &Region| region.end.unwrap_or(over_time.span.end);
    let mut regions: Vec<_> = host.regions.iter().collect();
    regions.sort_by_key(|region| (region.start, std::cmp::Reverse(end(region))));
    let mut bands: Vec<Band> = Vec::new();
    for region in regions {
        if bands.last().is_some_and(|last| last.end > region.start) {
            continue;
        }
        bands.push(Band {
            start: region.start,
            end: end(region),
            label: region.name.clone(),
            colour: colours[region.name.as_str()],
        });
    }
    if bands.len() > BANDS {
        return Vec::new();
    }
    bands
}
