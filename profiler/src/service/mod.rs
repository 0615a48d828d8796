//! The service of a node: one privileged process profiles for the users of the node who ask.
//!
//! A user gets rows of processes of that user only. The client writes the dataset, with the rights of
//! its user; the service sends rows and writes nothing. `docs/service.md` describes the protocol.

pub mod client;
mod client_log;
pub mod connection;
pub mod listener;
pub mod output;
pub mod protocol;
mod request;
pub mod rows;
pub mod users;

/// Socket of the service.
pub const SOCKET: &str = "/run/profiler-serve/socket";
