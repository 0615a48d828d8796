//! The crate as a library: its sources on fixtures and on this machine, its files after failures.

mod node;
mod sink_disk_full;
mod sink_kill;
