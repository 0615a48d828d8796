//! Capabilities: which are needed, and giving up the rest.

use caps::{CapSet, Capability, CapsHashSet};

use crate::host::Host;

/// What loading and reading BPF programs needs.
const BPF: [Capability; 2] = [Capability::CAP_BPF, Capability::CAP_PERFMON];

/// Whether BPF programs may be loaded.
pub fn may_load_bpf() -> bool {
    let has = |capability| caps::has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    has(Capability::CAP_SYS_ADMIN) || BPF.into_iter().all(has)
}

/// Keeps, of this thread's capabilities, those that sampling needs: BPF iterators and maps, reading /proc of
/// others, and passing signals on to a command of another user; and `more`.
pub fn keep_for_sampling(more: &[Capability]) {
    let always = [
        Capability::CAP_BPF,
        Capability::CAP_PERFMON,
        Capability::CAP_SYS_PTRACE,
        Capability::CAP_DAC_READ_SEARCH,
        Capability::CAP_KILL,
    ];
    keep(&[&always, more].concat());
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

/// Keeps, of this thread's capabilities, those that writing files of another owner needs.
pub fn keep_for_files() {
    keep(&[
        Capability::CAP_DAC_OVERRIDE,
        Capability::CAP_CHOWN,
        Capability::CAP_FOWNER,
    ]);
}

/// Keeps none of this thread's capabilities.
pub fn keep_none() {
    keep(&[]);
}

/// A kernel before 5.8 does not know CAP_BPF; there, and when anything else fails, nothing is given up.
fn keep(needed: &[Capability]) {
    let Ok(permitted) = caps::read(None, CapSet::Permitted) else {
        return;
    };
    let kept: CapsHashSet = permitted
        .iter()
        .copied()
        .filter(|cap| needed.contains(cap))
        .collect();
    if needed.contains(&Capability::CAP_BPF) && !kept.contains(&Capability::CAP_BPF) {
        return;
    }
    let _ = caps::set(None, CapSet::Effective, &kept);
    let _ = caps::set(None, CapSet::Permitted, &kept);
}
