//! Capabilities: which are needed, when they are effective, and giving up the rest.
//!
//! A profiler with file capabilities opens paths that its user names. Until [`raise`] is called, a thread of an
//! ordinary user has no effective capability, so that such a path is opened with the user's own rights.

use std::marker::PhantomData;

use caps::{CapSet, Capability, CapsHashSet};

use crate::{
    failure::{Failure, Reason},
    host::Host,
};

/// What loading and reading BPF programs needs.
const BPF: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_PERFMON];

/// To be called before anything is opened and any thread started: keeps capabilities from the programs that the profiler
/// executes and, unless it runs as root, makes them ineffective until they are raised.
///
/// # Errors
///
/// When the program is installed set-uid, which would open the user's paths as another user.
pub fn begin() -> Result<(), Failure> {
    let (real, effective) = (rustix::process::getuid(), rustix::process::geteuid());
    if real != effective {
        return Err(Failure::new(
            Reason::Privilege,
            "the program is set-uid: remove that (chmod u-s) and use sudo or file capabilities (docs/privileges.md)",
        ));
    }
    let _ = caps::clear(None, CapSet::Ambient);
    let _ = caps::clear(None, CapSet::Inheritable);
    if !effective.is_root() {
        caps::clear(None, CapSet::Effective).map_err(|error| {
            Failure::new(
                Reason::Privilege,
                format!("cannot lower capabilities: {error}"),
            )
        })?;
    }
    Ok(())
}

/// Whether the program was executed with more rights than its user has (`AT_SECURE`).
pub fn is_secure_execution() -> bool {
    // SAFETY: reads a number from the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The effective capabilities of this thread that [`raise`] or [`lower`] has replaced; they come back when it is dropped.
#[must_use]
pub struct Replaced {
    before: Option<CapsHashSet>,
    /// Capabilities belong to a thread.
    _not_send: PhantomData<*const ()>,
}

/// Makes all permitted capabilities effective in this thread: for reading `/proc` and `/sys` and for BPF, never for a path
/// that the user names.
pub fn raise() -> Replaced {
    let permitted = caps::read(None, CapSet::Permitted).unwrap_or_default();
    Replaced::with(&permitted)
}

/// The user's own rights, within the time in which capabilities are raised.
pub fn lower() -> Replaced {
    if rustix::process::geteuid().is_root() {
        return Replaced {
            before: None,
            _not_send: PhantomData,
        };
    }
    Replaced::with(&CapsHashSet::new())
}

impl Replaced {
    fn with(effective: &CapsHashSet) -> Self {
        let before = caps::read(None, CapSet::Effective).ok();
        let _ = caps::set(None, CapSet::Effective, effective);
        Self {
            before,
            _not_send: PhantomData,
        }
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = caps::set(None, CapSet::Effective, before);
        }
    }
}

/// Whether BPF programs may be loaded.
pub fn may_load_bpf() -> bool {
    let has = |capability| caps::has_cap(None, CapSet::Permitted, capability).unwrap_or(false);
    has(Capability::CAP_SYS_ADMIN) || BPF.into_iter().all(has)
}

/// Keeps, of this thread's capabilities, those that sampling needs, and makes them effective: BPF iterators and maps,
/// reading /proc of others, and passing signals on to a command of another user; and `more`.
pub fn keep_for_sampling(more: &[Capability]) {
    let always = [
        Capability::CAP_BPF,
        Capability::CAP_PERFMON,
        Capability::CAP_SYS_PTRACE,
        Capability::CAP_DAC_READ_SEARCH,
        Capability::CAP_KILL,
    ];
    let mut needed = [&always, more].concat();
    // Before 5.8, and where a container grants it instead.
    if !caps::has_cap(None, CapSet::Permitted, Capability::CAP_BPF).unwrap_or(false) {
        needed.push(Capability::CAP_SYS_ADMIN);
    }
    keep(&needed);
}

/// Keeps, of this thread's capabilities, those that reading /proc and /sys of other users needs, and makes them effective.
pub fn keep_for_reading() {
    keep(&[Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH]);
}

/// What opening hardware events needs besides `CAP_PERFMON`: kernels of Debian and Ubuntu have a level of
/// `kernel.perf_event_paranoid` above 2, at which they want more.
pub fn for_events(host: &Host) -> &'static [Capability] {
    if host.perf_event_paranoid.is_some_and(|level| level > 2) {
        &[Capability::CAP_SYS_ADMIN]
    } else {
        &[]
    }
}

/// Keeps, of this thread's capabilities, those with which root writes files of another owner: none of an ordinary user.
pub fn keep_for_files() {
    keep_of_root(&[
        Capability::CAP_DAC_OVERRIDE,
        Capability::CAP_CHOWN,
        Capability::CAP_FOWNER,
    ]);
}

/// Keeps, of this thread's capabilities, the one with which root reads files of another owner: none of an ordinary user.
pub fn keep_for_users_files() {
    keep_of_root(&[Capability::CAP_DAC_READ_SEARCH]);
}

/// Keeps none of this thread's capabilities.
pub fn keep_none() {
    keep(&[]);
}

fn keep_of_root(needed: &[Capability]) {
    let is_root = rustix::process::geteuid().is_root();
    keep(if is_root { needed } else { &[] });
}

fn keep(needed: &[Capability]) {
    let Ok(permitted) = caps::read(None, CapSet::Permitted) else {
        return;
    };
    let kept: CapsHashSet = permitted
        .iter()
        .copied()
        .filter(|cap| needed.contains(cap))
        .collect();
    let _ = caps::set(None, CapSet::Effective, &kept);
    let _ = caps::set(None, CapSet::Permitted, &kept);
}
