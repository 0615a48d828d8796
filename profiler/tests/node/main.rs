//! The sources that read the node: on fixture trees and on the machine at hand.

mod common;
mod this_machine;
