//! A mark: one datagram of an application.

#![no_main]

use libfuzzer_sys::fuzz_target;
use profiler::marks::Mark;

fuzz_target!(|data: &[u8]| {
    let _ = Mark::parse(data);
});
