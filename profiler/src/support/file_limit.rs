//! How many files may be open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises it from the 1024 that a shell gives to all that is allowed.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
}
