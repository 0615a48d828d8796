//! Macros that declare a struct or a map once, for the programs and for the profiler.

/// Declares structs that cross the border between programs and profiler process.
///
/// Each gets `repr(C)`, an assertion that it has no padding, and, for the profiler, aya's marker
/// trait for memory that is valid with any bytes.
macro_rules! shared {
    ($(
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($(#[$field_attribute:meta])* pub $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$attribute])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub struct $name {
            $($(#[$field_attribute])* pub $field: $type,)*
        }

        const _: () = assert!(
            size_of::<$name>() == 0 $(+ size_of::<$type>())*,
            concat!(stringify!($name), " has padding"),
        );

        // SAFETY: `repr(C)`, without padding, and every field can have any bytes: both asserted.
        #[cfg(feature = "user")]
        unsafe impl aya::Pod for $name {}

        #[cfg(feature = "user")]
        const _: () = {
            const fn assert_pod<T: aya::Pod>() {}
            $(assert_pod::<$type>();)*
        };
    )*};
}

/// Declares structs of 64-bit counters that only increase, with their arithmetic.
macro_rules! counters {
    ($(
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $($(#[$field_attribute:meta])* $field:ident,)*
        }
    )*) => {$(
        shared! {
            $(#[$attribute])*
            #[derive(Default, PartialEq, Eq)]
            pub struct $name {
                $($(#[$field_attribute])* pub $field: u64,)*
            }
        }

        impl $name {
            /// Adds every counter of `more`.
            #[cfg(not(target_arch = "bpf"))]
            pub fn add(&mut self, more: &Self) {
                $(self.$field = self.$field.wrapping_add(more.$field);)*
            }

            /// Raises every counter to its value in `now`, and returns the increases.
            ///
            /// A counter that is lower in `now` stays and has the increase 0; it catches up at a
            /// later reading.
            #[cfg(not(target_arch = "bpf"))]
            #[must_use]
            pub fn advance(&mut self, now: &Self) -> Self {
                let increase = Self {
                    $($field: now.$field.saturating_sub(self.$field),)*
                };
                $(self.$field = self.$field.max(now.$field);)*
                increase
            }

            /// Adds every counter of `more`, while other CPUs may do the same.
            #[cfg(target_arch = "bpf")]
            #[inline(always)]
            pub fn add_atomically(&mut self, more: &Self) {
                $($crate::programs::atomic::add(&mut self.$field, more.$field);)*
            }
        }
    )*};
}

/// Declares maps by a marker type, the name in the BPF object, and the type that `aya_ebpf` has for
/// them.
///
/// For the programs this is a static, for the profiler an implementation of
/// [`Map`](crate::maps::Map).
macro_rules! maps {
    ($(
        $(#[$attribute:meta])*
        $marker:ident: $name:ident = $definition:ty;
    )*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        pub struct $marker;

        impl $crate::maps::Named for $marker {
            const NAME: &'static str = stringify!($name);
        }

        impl $crate::maps::Map for $marker {
            type Definition = $definition;
        }

        $(#[$attribute])*
        #[cfg(target_arch = "bpf")]
        #[aya_ebpf::macros::btf_map]
        pub static $name: $definition = <$definition>::new();
    )*};
}

/// Declares maps as [`maps!`] does, and counts the entries that they have no space for.
///
/// The counts of these maps begin at index `first` of
/// [`ProgramCounters::dropped`](crate::maps::ProgramCounters::dropped). The types of maps under
/// `programs` are unknown to the profiler.
macro_rules! bounded_maps {
    (
        first: $first:expr;
        shared {
            $($(#[$attribute:meta])* $marker:ident: $name:ident = $definition:ty;)*
        }
        programs {
            $($(#[$own_attribute:meta])* $own_marker:ident: $own_name:ident = $own_definition:ty;)*
        }
    ) => {
        maps! { $($(#[$attribute])* $marker: $name = $definition;)* }

        $(
            $(#[$own_attribute])*
            #[derive(Clone, Copy, Debug)]
            pub struct $own_marker;

            impl $crate::maps::Named for $own_marker {
                const NAME: &'static str = stringify!($own_name);
            }

            $(#[$own_attribute])*
            #[cfg(target_arch = "bpf")]
            #[aya_ebpf::macros::btf_map]
            pub(crate) static $own_name: $own_definition = <$own_definition>::new();
        )*

        /// Names of the maps in which entries can be dropped.
        pub const BOUNDED: &[&str] = &[$(stringify!($name),)* $(stringify!($own_name),)*];

        #[cfg(target_arch = "bpf")]
        const _: () = {
            enum Index {
                $($marker,)*
                $($own_marker,)*
            }
            $(impl $crate::maps::Bounded for $marker {
                const INDEX: usize = $first + Index::$marker as usize;
            })*
            $(impl $crate::maps::Bounded for $own_marker {
                const INDEX: usize = $first + Index::$own_marker as usize;
            })*
        };
    };
}
