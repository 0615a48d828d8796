//! Which microarchitecture a CPU is.
