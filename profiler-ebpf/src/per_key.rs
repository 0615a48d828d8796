//! Structs of what is accounted per process and something else: I/O, system calls, latency.
//!
//! All are `repr(C)` without padding; counters only grow.

use crate::wire::Histogram;

/// Key of every map of flows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CounterKey {
    /// Start of the process, ns of `CLOCK_BOOTTIME`; when the process is not known, its cgroup (inode of the
    /// directory) or 0.
    pub start_boottime: u64,
    /// Process id in the controller's pid namespace; 0 when the process is not known.
    pub pid: u32,
    /// Thread id with `--threads`, otherwise 0.
    pub tid: u32,
    /// What else: see each map.
    pub dimension: u64,
}

/// What a latency is of: [`CounterKey::dimension`] in the map `LATENCY`.
pub mod kind {
    /// Start of a TCP connection until it is established.
    pub const TCP_CONNECT: u64 = 1;
    /// Smoothed round-trip time of a TCP connection, sampled.
    pub const TCP_RTT: u64 = 2;
    /// Read of a file.
    pub const FILE_READ: u64 = 16;
    /// Write of a file.
    pub const FILE_WRITE: u64 = 17;
    /// fsync, fdatasync, msync.
    pub const FSYNC: u64 = 18;
}

macro_rules! counters {
    ($(#[$meta:meta])* pub struct $name:ident {
        $($(#[$field_meta:meta])* $field:ident,)*
    }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: u64,)*
        }

        impl $name {
            /// Raises `self` to `now` and returns the increase, if there is one.
            #[cfg(not(target_arch = "bpf"))]
            pub fn advance(&mut self, now: &Self) -> Option<Self> {
                let increase = Self {
                    $($field: now.$field.saturating_sub(self.$field),)*
                };
                $(self.$field = self.$field.max(now.$field);)*
                (increase != Self::default()).then_some(increase)
            }

            /// Adds `more`.
            #[cfg(not(target_arch = "bpf"))]
            pub fn add(&mut self, more: &Self) {
                $(self.$field += more.$field;)*
            }
        }
    };
}

counters! {
    /// Entry of the map `NET_IO`; its key's `dimension` is a [`net::class`].
    pub struct NetCounters {
        /// Bytes that send calls returned.
        tx_bytes,
        /// Bytes that receive calls returned.
        rx_bytes,
        /// Send calls that returned no error.
        tx_calls,
        /// Receive calls that returned no error.
        rx_calls,
        /// TCP segments sent, those without data and those sent again included.
        tx_segments,
        /// TCP segments received, those without data included.
        rx_segments,
        /// TCP segments sent again.
        retransmits,
        /// TCP connections that were opened and established.
        connects,
        /// TCP connections that were opened and not established.
        connect_failures,
        /// TCP connections that were accepted.
        accepts,
        /// Established TCP connections that ended without a handshake.
        resets,
    }
}

counters! {
    /// Block I/O, without its times.
    pub struct BlockCounts {
        /// Requests that are done.
        ops,
        /// Their bytes.
        bytes,
        /// Of `ops`, those that failed.
        errors,
        /// Requests without data that asked for a flush, in the flows of flushes.
        asked,
        /// Of `ops`, those whose completion no program saw: they are in no histogram.
        untimed,
    }
}

/// Entry of the map `BLOCK_IO`; its key's `dimension` is a [`block::dimension`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockCounters {
    /// How much.
    pub counts: BlockCounts,
    /// How long requests took from their way into the queue to their issue.
    pub queue: Histogram,
    /// How long they took from their issue to their completion.
    pub service: Histogram,
}

/// Entry of the map `DISKS`: `gendisk.disk_name`, ended by a zero byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskName {
    /// Its 32 bytes as they lie in memory.
    pub name: [u64; 4],
}

/// Devices and operations of block I/O.
pub mod block {
    /// Operations, in the bits above the device.
    pub mod op {
        /// Read.
        pub const READ: u64 = 0;
        /// Write, also of zeros.
        pub const WRITE: u64 = 1;
        /// Discard.
        pub const DISCARD: u64 = 2;
        /// Flush of the device's cache.
        pub const FLUSH: u64 = 3;
    }

    /// Packs major and minor number of the whole disk (12 and 20 bits).
    #[inline(always)]
    pub fn device(major: u64, minor: u64) -> u64 {
        major << 20 | minor
    }

    /// Packs device and operation into the key's `dimension`.
    #[inline(always)]
    pub fn dimension(device: u64, op: u64) -> u64 {
        op << 32 | device
    }

    /// The operation in a `what`.
    #[inline(always)]
    pub fn op_of(dimension: u64) -> u64 {
        dimension >> 32
    }

    /// The device in a `what`: see [`device`].
    #[inline(always)]
    pub fn device_of(dimension: u64) -> u64 {
        dimension & 0xffff_ffff
    }

    /// Major and minor number of a device: see [`device`].
    pub fn numbers(device: u64) -> (u64, u64) {
        (device >> 20, device & 0xf_ffff)
    }
}

counters! {
    /// Entry of the map `FILE_IO`; its key's `dimension` is a [`mount`], or 0 when that is not known.
    pub struct FileCounters {
        /// Reads without error.
        read_ops,
        /// Bytes that they returned.
        read_bytes,
        /// Writes without error.
        write_ops,
        /// Bytes that they accepted.
        write_bytes,
        /// Reads, writes, syncs and opens that failed.
        errors,
        /// Syncs without error.
        fsyncs,
        /// Files and directories opened.
        opens,
        /// Files created by that.
        creates,
        /// Files and directories removed.
        unlinks,
        /// Files and directories renamed.
        renames,
        /// Directories made.
        mkdirs,
    }
}

/// Entry of the map `SYSCALLS`; its key's `dimension` is a [`call`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SyscallCounters {
    /// Calls that returned an error.
    pub errors: u64,
    /// How long the calls took.
    pub latency: Histogram,
}

/// Mounts as [`CounterKey::dimension`].
pub mod mount {
    /// Packs the mount's id and the device number of its file system, as the kernel holds them.
    #[inline(always)]
    pub fn dimension(id: u32, dev: u32) -> u64 {
        u64::from(id) << 32 | u64::from(dev)
    }

    /// Major and minor number of the device.
    pub fn numbers(dimension: u64) -> (u64, u64) {
        super::block::numbers(dimension & 0xffff_ffff)
    }
}

/// System calls as [`CounterKey::dimension`]: the number, and the ABI above it.
pub mod call {
    /// That of the kernel's own word size.
    pub const NATIVE: u64 = 0;
    /// 32 bits on a kernel of 64.
    pub const COMPAT: u64 = 1;
    /// x32: 32-bit pointers with the registers of x86-64.
    pub const X32: u64 = 2;

    /// Packs both.
    #[inline(always)]
    pub fn dimension(number: u32, abi: u64) -> u64 {
        abi << 32 | u64::from(number)
    }
}

/// Classes of network I/O. That on unix sockets, which has no others, is counted in [`crate::wire::TaskState`].
pub mod net {
    /// Protocol, in the low byte of a class.
    pub mod protocol {
        /// TCP and multipath TCP.
        pub const TCP: u64 = 1;
        /// UDP.
        pub const UDP: u64 = 2;
    }

    /// Family of addresses, in the second byte.
    pub mod family {
        /// Neither.
        pub const NONE: u64 = 0;
        /// IPv4, also through IPv6 sockets.
        pub const INET: u64 = 1;
        /// IPv6.
        pub const INET6: u64 = 2;
    }

    /// Where the other end is, in the third byte.
    pub mod scope {
        /// Not known.
        pub const UNKNOWN: u64 = 0;
        /// On this host, in the same network namespace.
        pub const LOOPBACK: u64 = 1;
        /// Anywhere else.
        pub const REMOTE: u64 = 2;
    }

    /// Packs the three into the key's `dimension`.
    #[inline(always)]
    pub fn class(protocol: u64, family: u64, scope: u64) -> u64 {
        protocol | family << 8 | scope << 16
    }

    /// The [`protocol`] in a class.
    #[inline(always)]
    pub fn protocol_of(class: u64) -> u64 {
        class & 0xff
    }

    /// The [`family`] in a class.
    #[inline(always)]
    pub fn family_of(class: u64) -> u64 {
        class >> 8 & 0xff
    }

    /// The [`scope`] in a class.
    #[inline(always)]
    pub fn scope_of(class: u64) -> u64 {
        class >> 16 & 0xff
    }
}

const _: () = {
    assert!(size_of::<CounterKey>() == 24);
    assert!(size_of::<NetCounters>() == 8 * 11);
    assert!(size_of::<BlockCounters>() == 8 * 5 + 2 * size_of::<Histogram>());
    assert!(size_of::<DiskName>() == 32);
    assert!(size_of::<FileCounters>() == 8 * 11);
    assert!(size_of::<SyscallCounters>() == 8 + size_of::<Histogram>());
};
