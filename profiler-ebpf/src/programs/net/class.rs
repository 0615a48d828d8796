//! Class of a socket: address family and scope, from its addresses and its route.

use super::AF_INET;
use crate::{
    offsets::MISSING,
    per_key::net::{class, family, scope},
    programs::kernel::{Object, offset},
};

/// `net_device.flags`.
const IFF_LOOPBACK: u32 = 8;
/// Third word of an address in ::ffff:0:0/96.
const MAPPED: u32 = 0xffff_u32.to_be();
/// Last word of ::1.
const ONE: u32 = 1_u32.to_be();
/// 127.0.0.0/8.
const LOOPBACK_NET: u32 = 0x7f00_0000_u32.to_be();
const LOOPBACK_MASK: u32 = 0xff00_0000_u32.to_be();

/// An IPv4 or IPv6 address.
struct Address {
    family: u64,
    words: [u32; 4],
}

impl Address {
    /// The address at one end of a socket. The family is that of the packets: an IPv6 socket with a
    /// mapped address uses IPv4.
    #[inline(always)]
    fn of(sock: Object, v4: u32, v6: u32) -> Self {
        // `v6` is missing without CONFIG_IPV6.
        if v6 == MISSING || sock.get::<u16>(offset!(sock_family)) == AF_INET {
            return Self {
                family: family::INET,
                words: [0, 0, 0, sock.get(v4)],
            };
        }
        let words: [u32; 4] = [
            sock.get(v6),
            sock.get(v6 + 4),
            sock.get(v6 + 8),
            sock.get(v6 + 12),
        ];
        let mapped = words[0] | words[1] == 0 && words[2] == MAPPED;
        Self {
            family: if mapped { family::INET } else { family::INET6 },
            words,
        }
    }

    /// 0.0.0.0 or ::.
    #[inline(always)]
    fn is_any(&self) -> bool {
        let [a, b, c, d] = self.words;
        a | b | d == 0 && (c == 0 || self.family == family::INET)
    }

    /// 127.0.0.0/8 or ::1.
    #[inline(always)]
    fn is_loopback(&self) -> bool {
        let [a, b, c, d] = self.words;
        if self.family == family::INET {
            d & LOOPBACK_MASK == LOOPBACK_NET
        } else {
            a | b | c == 0 && d == ONE
        }
    }

    #[inline(always)]
    fn equals(&self, other: &Self) -> bool {
        let (a, b) = (self.words, other.words);
        (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) == 0
    }
}

/// The cached route of a socket, which decides where its packets go; null if there is none. To be
/// taken at the beginning of a program: see [`Object::object`].
#[inline(always)]
pub fn route(sock: Object) -> Object {
    sock.object(offset!(sock_dst))
}

/// The class of a connected socket with this route.
#[inline(always)]
pub fn connected(sock: Object, route: Object, protocol: u64) -> u64 {
    let peer = Address::of(sock, offset!(sock_daddr), offset!(sock_v6_daddr));
    let scope = if !route.is_null() {
        let device = route.object(offset!(dst_dev));
        if device.get::<u32>(offset!(device_flags)) & IFF_LOOPBACK != 0 {
            scope::LOOPBACK
        } else {
            scope::REMOTE
        }
    } else if peer.is_loopback() {
        scope::LOOPBACK
    } else {
        let own = Address::of(sock, offset!(sock_saddr), offset!(sock_v6_saddr));
        if !peer.is_any() && peer.equals(&own) {
            scope::LOOPBACK
        } else {
            scope::UNKNOWN
        }
    };
    class(protocol, peer.family, scope)
}

/// The class of a socket that is not connected, as far as it is known from its own address.
#[inline(always)]
pub fn bound(sock: Object, protocol: u64) -> u64 {
    let own = Address::of(sock, offset!(sock_saddr), offset!(sock_v6_saddr));
    if own.is_loopback() {
        return class(protocol, own.family, scope::LOOPBACK);
    }
    // An IPv6 socket that is bound to :: can receive over IPv4.
    let family = if own.family == family::INET6 && own.is_any() {
        family::NONE
    } else {
        own.family
    };
    class(protocol, family, scope::UNKNOWN)
}
