//! Attacks by users without privilege on a profiler that has it. Run by `cargo xtask test hostile`.

mod capabilities;
mod guard;
mod installed;
mod jobs;
mod marks;
mod names;
mod output;
mod paths;
mod poison;
