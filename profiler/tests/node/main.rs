//! The sources that read the node: on fixture machines and on the machine at hand.

mod common;
mod facts;
mod this_machine;
mod ticks;
