//! The user side of the BPF programs.

pub mod btf;
