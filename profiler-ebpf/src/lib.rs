//! Structs that the BPF programs and the controller share.
#![no_std]
