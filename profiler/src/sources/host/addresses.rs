//! Addresses of network interfaces (`getifaddrs(3)`).

use std::{collections::HashMap, path::Path};

use nix::{
    ifaddrs::{InterfaceAddress, getifaddrs},
    sys::socket::{AddressFamily, SockaddrLike as _, SockaddrStorage},
};
use serde::Serialize;

/// An address of an interface.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct NicAddress {
    /// `inet`, `inet6`, or `packet` for a hardware address.
    family: &'static str,
    address: String,
    netmask: Option<String>,
    broadcast: Option<String>,
    /// Other end of a point-to-point link.
    peer: Option<String>,
}

/// Addresses of all interfaces of this network namespace, by interface. Empty with another sysfs,
/// which can show the interfaces of another namespace.
pub(super) fn read(sysfs: &Path) -> HashMap<String, Vec<NicAddress>> {
    let mut addresses: HashMap<String, Vec<NicAddress>> = HashMap::new();
    if sysfs != Path::new("/sys") {
        return addresses;
    }
    for found in getifaddrs().into_iter().flatten() {
        if let Some(address) = address(&found) {
            let name = found.interface_name;
            addresses.entry(name).or_default().push(address);
        }
    }
    addresses
}

fn address(found: &InterfaceAddress) -> Option<NicAddress> {
    let address = found.address.as_ref()?;
    Some(NicAddress {
        family: match address.family()? {
            AddressFamily::Inet => "inet",
            AddressFamily::Inet6 => "inet6",
            AddressFamily::Packet => "packet",
            _ => return None,
        },
        address: text(address)?,
        netmask: found.netmask.as_ref().and_then(text),
        broadcast: found.broadcast.as_ref().and_then(text),
        peer: found.destination.as_ref().and_then(text),
    })
}

/// An address without port and scope.
fn text(address: &SockaddrStorage) -> Option<String> {
    if let Some(address) = address.as_sockaddr_in() {
        return Some(address.ip().to_string());
    }
    if let Some(address) = address.as_sockaddr_in6() {
        return Some(address.ip().to_string());
    }
    let bytes = address.as_link_addr()?.addr()?;
    let bytes = bytes.map(|byte| format!("{byte:02x}"));
    Some(bytes.join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_its_addresses() {
        let all = read(Path::new("/sys"));
        let has = |family: &str, address: &str, netmask: Option<&str>| {
            all.get("lo").into_iter().flatten().any(|found| {
                found.family == family
                    && found.address == address
                    && (netmask.is_none() || found.netmask.as_deref() == netmask)
            })
        };
        assert!(has("inet", "127.0.0.1", Some("255.0.0.0")), "{all:?}");
        assert!(has("packet", "00:00:00:00:00:00", None), "{all:?}");
        assert!(read(Path::new("/host/sys")).is_empty());
    }
}
