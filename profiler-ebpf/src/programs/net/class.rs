//! What is known of a socket from itself: family and scope.

use super::AF_INET;
use crate::{
    offsets::MISSING,
    per_key::net::{class, family, scope},
    programs::kernel::{Object, offset},
};

/// `net_device.flags`.
const IFF_LOOPBACK: u32 = 8;
/// First 32 bits of ::ffff:0:0/96 that are not zero.
const MAPPED: u32 = 0xffff_u32.to_be();
/// Last 32 bits of ::1.
const ONE: u32 = 1_u32.to_be();
/// 127.0.0.0/8.
const LOOPBACK_NET: u32 = 0x7f00_0000_u32.to_be();
const LOOPBACK_MASK: u32 = 0xff00_0000_u32.to_be();

/// An address of either family.
struct Address {
    family: u64,
    words: [u32; 4],
}

impl Address {
    /// One end of a socket; its family is that of the packets, which an IPv6 socket tells by the address.
    #[inline(always)]
    fn of(sock: Object, v4: u32, v6: u32) -> Self {
        // A kernel may have no IPv6.
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

    /// No address at all.
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
    fn is(&self, other: &Self) -> bool {
        let (ours, theirs) = (self.words, other.words);
        (ours[0] ^ theirs[0])
            | (ours[1] ^ theirs[1])
            | (ours[2] ^ theirs[2])
            | (ours[3] ^ theirs[3])
            == 0
    }
}

/// The class of a socket that has another end.
#[inline(always)]
pub fn connected(sock: Object, protocol: u64) -> u64 {
    let there = Address::of(sock, offset!(sock_daddr), offset!(sock_v6_daddr));
    // The route that packets take: by it the kernel itself decides.
    let route = sock.object(offset!(sock_dst));
    let scope = if !route.is_null() {
        let device = route.object(offset!(dst_dev));
        if device.get::<u32>(offset!(device_flags)) & IFF_LOOPBACK != 0 {
            scope::LOOPBACK
        } else {
            scope::REMOTE
        }
    } else if there.is_loopback() {
        scope::LOOPBACK
    } else {
        let here = Address::of(sock, offset!(sock_saddr), offset!(sock_v6_saddr));
        if !there.is_any() && there.is(&here) {
            scope::LOOPBACK
        } else {
            scope::UNKNOWN
        }
    };
    class(protocol, there.family, scope)
}

/// The class of a socket that has no other end, as far as the address tells that it is bound to.
#[inline(always)]
pub fn bound(sock: Object, protocol: u64) -> u64 {
    let here = Address::of(sock, offset!(sock_saddr), offset!(sock_v6_saddr));
    if here.is_loopback() {
        return class(protocol, here.family, scope::LOOPBACK);
    }
    // An IPv6 socket without an address may well receive over IPv4.
    let family = if here.family == family::INET6 && here.is_any() {
        family::NONE
    } else {
        here.family
    };
    class(protocol, family, scope::UNKNOWN)
}
