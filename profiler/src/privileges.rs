//! Capabilities: which ones are needed, when they are effective, and dropping the others.
//!
//! A profiler with file capabilities opens paths that its user names. Until [`raise`] is called, a
//! thread of an ordinary user has no effective capability, so such a path is opened with the
//! permissions of the user.

use std::marker::PhantomData;

use caps::{CapSet, Capability, CapsHashSet};

use crate::failure::{Failure, Reason};

/// Needed to load BPF programs and to read from them.
const BPF: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_PERFMON];

/// Must be called before a file is opened or a thread started. Programs that the profiler executes
/// do not inherit its capabilities. Unless it runs as root, no capability is effective until it is
/// raised.
///
/// # Errors
///
/// When the program is set-uid: it would open the paths of its user as another user.
pub fn begin() -> Result<(), Failure> {
    let (real, effective) = (rustix::process::getuid(), rustix::process::geteuid());
    if real != effective {
        return Err(Failure::new(
            Reason::Privilege,
            "the program is set-uid: clear the bit (chmod u-s) and use sudo or file capabilities \
             (docs/privileges.md)",
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

/// Whether the program has more permissions than the user that executed it (`AT_SECURE`).
pub fn is_secure_execution() -> bool {
    // SAFETY: returns a number from the auxiliary vector.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The effective capabilities that [`raise`] or [`lower`] has replaced in this thread. Dropping it
/// restores them.
#[must_use]
pub struct Replaced {
    before: Option<CapsHashSet>,
    // Capabilities belong to a thread.
    _not_send: PhantomData<*const ()>,
}

/// Makes all permitted capabilities effective in this thread: for reading `/proc` and `/sys` and
/// for BPF, never for a path that the user names.
pub fn raise() -> Replaced {
    let permitted = caps::read(None, CapSet::Permitted).unwrap_or_default();
    Replaced::with(&permitted)
}

/// Makes all capabilities ineffective in this thread, while they are raised, to open a path of the
/// user.
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

/// Whether this process may load BPF programs.
pub fn may_load_bpf() -> bool {
    let has = |capability| caps::has_cap(None, CapSet::Permitted, capability).unwrap_or(false);
    has(Capability::CAP_SYS_ADMIN) || BPF.into_iter().all(has)
}

/// Drops all capabilities of this thread but those that sampling needs and `more`, and makes them
/// effective: BPF iterators and maps, `/proc` of other users, signals to a command of another user.
pub fn keep_for_sampling(more: &[Capability]) {
    let always = [
        Capability::CAP_BPF,
        Capability::CAP_PERFMON,
        Capability::CAP_SYS_PTRACE,
        Capability::CAP_DAC_READ_SEARCH,
        Capability::CAP_KILL,
    ];
    let mut needed = [&always, more].concat();
    // Before Linux 5.8, and in containers that grant CAP_SYS_ADMIN instead.
    if !caps::has_cap(None, CapSet::Permitted, Capability::CAP_BPF).unwrap_or(false) {
        needed.push(Capability::CAP_SYS_ADMIN);
    }
    keep(&needed);
}

/// Drops all capabilities of this thread but those for reading `/proc` and `/sys` of other users,
/// and makes them effective.
pub fn keep_for_reading() {
    keep(&[Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH]);
}

/// Capabilities for opening hardware events besides `CAP_PERFMON`, by `kernel.perf_event_paranoid`:
/// kernels of Debian and Ubuntu have levels above 2, which require more.
pub fn for_events(perf_event_paranoid: Option<i64>) -> &'static [Capability] {
    if perf_event_paranoid.is_some_and(|level| level > 2) {
        &[Capability::CAP_SYS_ADMIN]
    } else {
        &[]
    }
}

/// Drops all capabilities of this thread but those with which root writes files of another owner.
/// An ordinary user keeps none.
pub fn keep_for_files() {
    keep_of_root(&[
        Capability::CAP_DAC_OVERRIDE,
        Capability::CAP_CHOWN,
        Capability::CAP_FOWNER,
    ]);
}

/// Drops all capabilities of this thread but the one with which root reads files of another owner.
/// An ordinary user keeps none.
pub fn keep_for_users_files() {
    keep_of_root(&[Capability::CAP_DAC_READ_SEARCH]);
}

/// Drops all capabilities of this thread.
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
