//! The crate as a library.

mod base;
mod catalog;
