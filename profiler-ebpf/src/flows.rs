//! Structs of what is accounted per process and something else: I/O, system calls, latency.
//!
//! All are `repr(C)` without padding; counters only grow.

/// Key of every map of flows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// Start of the process, ns of `CLOCK_BOOTTIME`; 0 when the process is not known.
    pub start_boottime: u64,
    /// Process id in the controller's pid namespace; 0 when the process is not known.
    pub pid: u32,
    /// Thread id with `--threads`, otherwise 0.
    pub tid: u32,
    /// What else: see each map.
    pub what: u64,
}

/// What a latency is of: [`FlowKey::what`] in the map `LATENCY`.
pub mod kind {
    /// Start of a TCP connection until it is established.
    pub const TCP_CONNECT: u64 = 1;
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
    /// Entry of the map `NET_IO`; its key's `what` is a [`net::class`].
    pub struct NetFlow {
        /// Bytes that send calls returned.
        tx_bytes,
        /// Bytes that receive calls returned.
        rx_bytes,
        /// Send calls that returned no error.
        tx_calls,
        /// Receive calls that returned no error.
        rx_calls,
    }
}

/// Classes of network I/O.
pub mod net {
    /// Protocol, in the low byte of a class.
    pub mod protocol {
        /// TCP and multipath TCP.
        pub const TCP: u64 = 1;
        /// UDP.
        pub const UDP: u64 = 2;
        /// Unix sockets of any type.
        pub const UNIX: u64 = 3;
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

    /// Packs the three into the key's `what`.
    #[inline(always)]
    pub fn class(protocol: u64, family: u64, scope: u64) -> u64 {
        protocol | family << 8 | scope << 16
    }
}

const _: () = {
    assert!(size_of::<FlowKey>() == 24);
    assert!(size_of::<NetFlow>() == 8 * 4);
};
