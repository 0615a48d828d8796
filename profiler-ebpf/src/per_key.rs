//! Per-key counters: I/O, system calls and latencies of each process and dimension (a protocol, a
//! device, a mount, a kind of latency).

#[cfg(target_arch = "bpf")]
use aya_ebpf::btf_maps::HashMap;

#[cfg(not(target_arch = "bpf"))]
use crate::maps::HashMap;
use crate::{histogram::Histogram, maps};

/// A map of per-key counters. The profiler gives the maps that are in use more entries.
pub type PerKey<V> = HashMap<CounterKey, Entry<V>, 1, { maps::NO_PREALLOC }>;

/// The counters of a key.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Entry<V> {
    /// Number of the reading before which the key was last [listed as changed](ChangedKey).
    pub listed: u64,
    /// The counters.
    pub counters: V,
}

// SAFETY: `repr(C)`, and both fields can have any bytes. There is no padding: `per_key_maps!`
// asserts it for each type of counters.
#[cfg(feature = "user")]
unsafe impl<V: aya::Pod> aya::Pod for Entry<V> {}

/// A map of per-key counters.
pub trait PerKeyMap: maps::Map<Definition = PerKey<Self::Counters>> {
    /// Type of the counters.
    type Counters: 'static;

    /// The map.
    #[cfg(target_arch = "bpf")]
    fn map() -> &'static PerKey<Self::Counters>;
}

/// Declares the maps of per-key counters, and [`for_each_per_key_map`], with which the profiler
/// declares their readers.
///
/// The structs under `counters` are declared with [`counters!`]. For those under `structs`, the
/// profiler implements how an increase is computed.
macro_rules! per_key_maps {
    (
        counters { $($(#[$attribute:meta])* $field:ident: $marker:ident = $name:ident<$value:ident>;)* }
        structs {
            $($(#[$own_attribute:meta])* $own_field:ident: $own_marker:ident
                = $own_name:ident<$own_value:ident>;)*
        }
    ) => {
        bounded_maps! {
            first: maps::BOUNDED.len();
            shared {
                $($(#[$attribute])* $marker: $name = PerKey<$value>;)*
                $($(#[$own_attribute])* $own_marker: $own_name = PerKey<$own_value>;)*
            }
            programs {}
        }

        per_key_maps! { @implement $($marker $name $value)* $($own_marker $own_name $own_value)* }

        /// Passes all maps of per-key counters to a macro: a name, the marker and the counters.
        #[macro_export]
        macro_rules! for_each_per_key_map {
            ($callback:ident) => {
                $callback! {
                    counters { $($field: $crate::per_key::$marker, $crate::per_key::$value;)* }
                    structs { $($own_field: $crate::per_key::$own_marker;)* }
                }
            };
        }
    };
    (@implement $($marker:ident $name:ident $value:ident)*) => {$(
        const _: () = assert!(
            size_of::<Entry<$value>>() == size_of::<u64>() + size_of::<$value>(),
            concat!("an entry of ", stringify!($name), " has padding"),
        );

        impl PerKeyMap for $marker {
            type Counters = $value;

            #[cfg(target_arch = "bpf")]
            #[inline(always)]
            fn map() -> &'static PerKey<$value> {
                &$name
            }
        }
    )*};
}

per_key_maps! {
    counters {
        /// Network I/O by [`net::class`].
        net_io: NetIo = NET_IO<NetCounters>;

        /// File I/O by [`mount::dimension`], 0 if the mount is unknown.
        file_io: FileIo = FILE_IO<FileCounters>;
    }
    structs {
        /// Block I/O by [`block::dimension`].
        block_io: BlockIo = BLOCK_IO<BlockCounters>;

        /// System calls by [`call::dimension`].
        syscalls: Syscalls = SYSCALLS<SyscallCounters>;

        /// Latencies by [`kind`].
        latency: Latency = LATENCY<Histogram>;
    }
}

shared! {
    /// An entry of the ring buffer `CHANGED`: counters that change for the first time since a reading.
    pub struct ChangedKey {
        /// Index of the map in [`BOUNDED`].
        pub map: u64,
        /// The key.
        pub key: CounterKey,
    }

    /// Key of per-key counters.
    #[derive(Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct CounterKey {
        /// Start of the process, ns of `CLOCK_BOOTTIME`. If the process is unknown, its cgroup
        /// (inode of the directory) or 0.
        pub start_boottime: u64,
        /// Process id in the profiler's pid namespace; 0 if the process is unknown.
        pub pid: u32,
        /// Thread id with `--threads`, otherwise 0.
        pub tid: u32,
        /// The second half of the key, whose meaning depends on the map.
        pub dimension: u64,
    }

    /// The process, and the thread, to which an operation is accounted.
    #[derive(Default, PartialEq, Eq, Hash)]
    pub struct Owner {
        /// Start of the process, ns of `CLOCK_BOOTTIME`. If the process is unknown, its cgroup
        /// (inode of the directory) or 0.
        pub start_boottime: u64,
        /// Process id in the profiler's pid namespace; 0 if the process is unknown.
        pub pid: u32,
        /// Thread id in the profiler's pid namespace.
        pub tid: u32,
    }
}

impl Owner {
    /// Neither a process nor a cgroup.
    pub const UNKNOWN: Self = Self {
        start_boottime: 0,
        pid: 0,
        tid: 0,
    };
}

counters! {
    /// Network I/O, without that on unix sockets: it has only one class, and is counted in
    /// [`Totals`](crate::record::Totals).
    pub struct NetCounters {
        /// Bytes returned by send calls.
        tx_bytes,
        /// Bytes returned by receive calls.
        rx_bytes,
        /// Send calls without error.
        tx_calls,
        /// Receive calls without error.
        rx_calls,
        /// TCP segments sent, including retransmits and segments without data.
        tx_segments,
        /// TCP segments received, including segments without data.
        rx_segments,
        /// TCP segments retransmitted.
        retransmits,
        /// TCP connections opened and established.
        connects,
        /// TCP connections opened and not established.
        connect_failures,
        /// TCP connections accepted.
        accepts,
        /// Established TCP connections that ended without a handshake.
        resets,
    }

    /// File I/O.
    pub struct FileCounters {
        /// Reads without error.
        read_ops,
        /// Bytes returned by reads.
        read_bytes,
        /// Writes without error.
        write_ops,
        /// Bytes accepted by writes.
        write_bytes,
        /// Reads, writes, syncs and opens that failed.
        errors,
        /// Syncs without error.
        fsyncs,
        /// Files and directories opened.
        opens,
        /// Files created by an open.
        creates,
        /// Files and directories removed.
        unlinks,
        /// Files and directories renamed.
        renames,
        /// Directories created.
        mkdirs,
    }

    /// Numbers of block I/O.
    pub struct BlockCounts {
        /// Completed requests.
        ops,
        /// Bytes completed.
        bytes,
        /// Requests in `ops` that failed.
        errors,
        /// Requests without data that asked for a flush; only in counters of flushes.
        flush_requests,
        /// Requests in `ops` whose completion no program saw, so that no histogram contains them.
        ops_untimed,
    }
}

shared! {
    /// Block I/O.
    #[derive(Default)]
    pub struct BlockCounters {
        /// Numbers of requests and bytes.
        pub counts: BlockCounts,
        /// Time from the creation of a request to its issue.
        pub queue: Histogram,
        /// Time from the issue of a request to its completion.
        pub service: Histogram,
    }

    /// System calls.
    #[derive(Default)]
    pub struct SyscallCounters {
        /// Calls that returned an error.
        pub errors: u64,
        /// Time of the calls.
        pub latency: Histogram,
    }
}

/// Kinds of latency.
pub mod kind {
    /// From the start of a TCP connection until it is established.
    pub const TCP_CONNECT: u64 = 1;
    /// Smoothed round-trip time of a TCP connection, sampled.
    pub const TCP_RTT: u64 = 2;
    /// Read of a file.
    pub const FILE_READ: u64 = 16;
    /// Write of a file.
    pub const FILE_WRITE: u64 = 17;
    /// fsync, fdatasync or msync.
    pub const FSYNC: u64 = 18;
}

/// Dimension of block I/O: device and operation.
pub mod block {
    /// Operations, in the bits above the device.
    pub mod op {
        /// Read.
        pub const READ: u64 = 0;
        /// Write, including writes of zeros.
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

    /// Packs device and operation.
    #[inline(always)]
    pub fn dimension(device: u64, op: u64) -> u64 {
        op << 32 | device
    }

    /// The operation of a dimension.
    #[inline(always)]
    pub fn op_of(dimension: u64) -> u64 {
        dimension >> 32
    }

    /// The device of a dimension, as packed by [`device`].
    #[inline(always)]
    pub fn device_of(dimension: u64) -> u64 {
        dimension & 0xffff_ffff
    }

    /// Major and minor number of a device that was packed by [`device`].
    pub fn numbers(device: u64) -> (u64, u64) {
        (device >> 20, device & 0xf_ffff)
    }
}

/// Dimension of file I/O: a mount.
pub mod mount {
    /// Packs the id of the mount and the kernel's device number of its file system.
    #[inline(always)]
    pub fn dimension(id: u32, dev: u32) -> u64 {
        u64::from(id) << 32 | u64::from(dev)
    }

    /// Major and minor number of the device.
    pub fn numbers(dimension: u64) -> (u64, u64) {
        super::block::numbers(dimension & 0xffff_ffff)
    }
}

/// Dimension of system calls: the number, and the ABI above it.
pub mod call {
    /// ABI of the kernel's own word size.
    pub const NATIVE: u64 = 0;
    /// 32-bit ABI on a 64-bit kernel.
    pub const COMPAT: u64 = 1;
    /// x32: 32-bit pointers with the registers of x86-64.
    pub const X32: u64 = 2;

    /// Packs number and ABI.
    #[inline(always)]
    pub fn dimension(number: u32, abi: u64) -> u64 {
        abi << 32 | u64::from(number)
    }
}

/// Dimension of network I/O: protocol, address family and scope.
pub mod net {
    /// Protocol, in the low byte of a class.
    pub mod protocol {
        /// TCP and multipath TCP.
        pub const TCP: u64 = 1;
        /// UDP.
        pub const UDP: u64 = 2;
    }

    /// Address family, in the second byte of a class.
    pub mod family {
        /// Unknown.
        pub const NONE: u64 = 0;
        /// IPv4, also through an IPv6 socket.
        pub const INET: u64 = 1;
        /// IPv6.
        pub const INET6: u64 = 2;
    }

    /// Location of the other end, in the third byte of a class.
    pub mod scope {
        /// Unknown.
        pub const UNKNOWN: u64 = 0;
        /// On this host, in the same network namespace.
        pub const LOOPBACK: u64 = 1;
        /// Elsewhere.
        pub const REMOTE: u64 = 2;
    }

    /// Packs protocol, family and scope.
    #[inline(always)]
    pub fn class(protocol: u64, family: u64, scope: u64) -> u64 {
        protocol | family << 8 | scope << 16
    }

    /// The [`protocol`] of a class.
    #[inline(always)]
    pub fn protocol_of(class: u64) -> u64 {
        class & 0xff
    }

    /// The [`family`] of a class.
    #[inline(always)]
    pub fn family_of(class: u64) -> u64 {
        class >> 8 & 0xff
    }

    /// The [`scope`] of a class.
    #[inline(always)]
    pub fn scope_of(class: u64) -> u64 {
        class >> 16 & 0xff
    }
}
