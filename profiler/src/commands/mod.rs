//! The subcommands, one file each; `run` is [`session`](crate::session).

pub mod check;
pub mod events;
pub mod mark;
pub mod schema;
pub mod verify;
