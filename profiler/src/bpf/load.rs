//! Loading the BPF object: settings, constants of the running kernel, and sizes of maps.

use std::io::Read as _;

use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use flate2::read::ZlibDecoder;
use profiler_ebpf::{
    config::{self, Config},
    maps::{EVENTS_MIN, Events, Named, Processes, Requests},
    offsets::{MISSING, Offsets},
};

use super::{
    btf::Btf,
    error::{BpfError, VERIFIER_LOG},
    instrumentation::{Hook, Requested},
};
use crate::host::Host;

/// The BPF object, built by `cargo xtask build`, as zlib has compressed it.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/profiler.bpf.o.z"));

/// Variable with helpers of the kernel that are not used, as on kernels without them.
const UNUSED_HELPERS: &str = "PROFILER_UNUSED_HELPERS";

/// Method of source `sched` that observes wakeups.
pub const WAKEUP: &str = "wakeup";

/// The iterators: the one that follows tasks, the two that read them, and the one that reads names.
pub const MARK: &str = "mark";
pub const SAMPLE: &str = "sample";
pub const SURVEY: &str = "survey";
pub const NAMES: &str = "names";

/// Entries of the map of block requests in flight. It is preallocated (4 MiB).
const REQUESTS_MAX: u32 = 1 << 15;

/// Which tasks are the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Processes named by pid, and their descendants.
    Pids,
    /// Members of a cgroup and of the cgroups below it.
    Cgroup {
        /// Inode of its directory.
        id: u64,
        /// Its hierarchy, 0 for v2.
        hierarchy: u32,
    },
    /// Members of cgroups, processes named by pid, and the descendants of both. Both sets can grow.
    Job {
        /// Inodes of the directories.
        ids: Vec<u64>,
        /// Their hierarchy, 0 for v2.
        hierarchy: u32,
    },
    /// Every task.
    Node,
}

/// Settings of the programs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Which tasks are the target.
    pub scope: Scope,
    /// Whether time asleep and the histogram of waits are kept.
    pub sched: bool,
    /// Whether the end of each thread is reported.
    pub threads: bool,
    /// Whether moves between cgroups are reported.
    pub moves: bool,
    /// Instrumentation of the sources.
    pub instrumentations: Vec<Requested>,
    /// Entries of each map of per-key counters; by default they depend on the size of the node.
    pub max_entries: Option<u32>,
    /// Entries of single maps, which take precedence; of `EVENTS`, bytes.
    pub map_entries: Vec<(String, u32)>,
}

/// What is loaded into the running kernel, as its types tell.
pub struct Plan {
    pub offsets: Offsets,
    pub config: Config,
    /// The iterators that follow and read tasks.
    pub iterators: Vec<Hook>,
    /// The tracepoints that follow the target.
    pub tracepoints: Vec<Hook>,
    /// The iterator that reads names in the memory of processes; `None` on kernels without the helper.
    pub names: Option<Hook>,
    /// The instrumentation of `sched`, whose programs follow the states of tasks: they have to be attached
    /// before these are followed.
    pub of_states: Vec<Requested>,
    /// The instrumentations of the other sources.
    pub of_sources: Vec<Requested>,
    /// The types of all hooks, for aya: BTF.
    pub types: Vec<u8>,
    /// The BPF object.
    pub object: Vec<u8>,
}

impl Plan {
    /// Reads the types of the running kernel.
    ///
    /// # Errors
    ///
    /// When the kernel has no BTF, or lacks required members.
    pub fn new(host: &Host, settings: &Settings) -> Result<Self, BpfError> {
        let kernel = Btf::read(&host.sysfs.join("kernel/btf/vmlinux"))?;
        let offsets = Offsets::resolve(|name, member| kernel.offset_of(name, member));
        let missing = offsets.missing();
        if !missing.is_empty() {
            return Err(BpfError::MissingMembers(missing));
        }
        let mut requested = settings.instrumentations.clone();
        let wakeups = observe_wakeups(host, &offsets, &mut requested);
        let config = config(host, settings, &kernel, &offsets, wakeups);
        let iterators = iterators(&config);
        let tracepoints = tracepoints(settings, &kernel, &offsets);
        let has_names = has_helper(&kernel, "BPF_FUNC_copy_from_user_task");
        let names = has_names.then(|| Hook::tasks_sleepable(NAMES));
        let own = iterators.iter().chain(&tracepoints).chain(&names).copied();
        let of_all = requested.iter().flat_map(|one| one.hooks()).copied();
        let types = kernel.only(own.chain(of_all).flat_map(Hook::type_names));
        let (of_states, of_sources) = requested.into_iter().partition(follows_states);
        Ok(Self {
            offsets,
            config,
            iterators,
            tracepoints,
            names,
            of_states,
            of_sources,
            types,
            object: object()?,
        })
    }
}

/// The BPF object, decompressed. Its parser needs 8-byte alignment, which allocations of this size have.
fn object() -> Result<Vec<u8>, BpfError> {
    let mut object = Vec::new();
    let read = ZlibDecoder::new(OBJECT).read_to_end(&mut object);
    read.map(|_| object).map_err(BpfError::Damaged)
}

/// Loads the object, which creates the maps.
pub fn load_object<'a>(
    mut loader: EbpfLoader<'a>,
    host: &Host,
    settings: &'a Settings,
    plan: &'a Plan,
) -> Result<Ebpf, BpfError> {
    loader
        // aya does not know task storage, which only programs use.
        .allow_unsupported_maps()
        .verifier_log_level(verifier_log_level())
        .override_global("OFFSETS", &plan.offsets, true)
        .override_global("CONFIG", &plan.config, true)
        .map_max_entries(Processes::NAME, processes_max(host))
        .map_max_entries(Events::NAME, events_size(host));
    // The maps of other sources keep a single entry.
    let requested = settings.instrumentations.iter();
    for map in requested.flat_map(|requested| requested.instrumentation.maps) {
        let entries = match *map {
            Requests::NAME => REQUESTS_MAX,
            _ => counters_max(host, settings),
        };
        loader.map_max_entries(map, entries);
    }
    for (map, entries) in &settings.map_entries {
        loader.map_max_entries(map, *entries);
    }
    loader.load(&plan.object).map_err(BpfError::Object)
}

/// Whether wakeups are observed: on request, and if the scheduler does not note the times of each
/// task, or does so on clocks that differ between CPUs. The source `sched` then has this method.
fn observe_wakeups(host: &Host, offsets: &Offsets, requested: &mut [Requested]) -> bool {
    let noted = [
        offsets.task_last_arrival,
        offsets.task_last_queued,
        offsets.task_cfs_rq,
        offsets.cfs_rq_rq,
    ];
    let is_forced = noted.contains(&MISSING) || !host.cpu_clocks_agree();
    match requested
        .iter_mut()
        .find(|requested| follows_states(requested))
    {
        Some(sched) if is_forced => sched.method = Some(WAKEUP),
        Some(sched) => return sched.method == Some(WAKEUP),
        None => {}
    }
    is_forced
}

/// Whether this is the instrumentation of `sched`.
fn follows_states(requested: &Requested) -> bool {
    let mut methods = requested.instrumentation.methods.iter();
    methods.any(|method| method.name == WAKEUP)
}

/// The constants of the programs.
fn config(
    host: &Host,
    settings: &Settings,
    kernel: &Btf,
    offsets: &Offsets,
    wakeups: bool,
) -> Config {
    let (scope, cgroup_hierarchy) = match settings.scope {
        Scope::Pids => (config::scope::PIDS, 0),
        Scope::Cgroup { hierarchy, .. } => (config::scope::CGROUP, hierarchy),
        Scope::Job { hierarchy, .. } => (config::scope::JOB, hierarchy),
        Scope::Node => (config::scope::NODE, 0),
    };
    let uring_complete_passes_data = kernel.tracepoint_arguments("io_uring_complete") == Some(4);
    // Linux 5.18 has it in neither: the program at the submission does not load there.
    let has_uring_result =
        uring_complete_passes_data || kernel.offset_of("io_kiocb", "cqe.res").is_some();
    let has_percpu_lookup = has_helper(kernel, "BPF_FUNC_map_lookup_percpu_elem");
    let methods = settings
        .instrumentations
        .iter()
        .flat_map(|requested| requested.methods());
    Config {
        cgroup_hierarchy,
        scope,
        sched: settings.sched.into(),
        wakeups: wakeups.into(),
        has_prev_state: (kernel.tracepoint_arguments("sched_switch") >= Some(4)).into(),
        threads: settings.threads.into(),
        cpus: u32::try_from(host.possible_cpus).unwrap_or(1),
        rss_percpu: kernel.is_array("mm_struct", "rss_stat").into(),
        percpu_counter_size: kernel.size_of("percpu_counter").unwrap_or(0),
        upid_size: kernel.size_of("upid").unwrap_or(0),
        syscalls: methods.fold(0, |bits, method| bits | method.syscalls),
        recvmsg_has_noblock: (kernel.function_arguments("tcp_recvmsg") == Some(6)).into(),
        recv_udp_has_noblock: (kernel.function_arguments("__skb_recv_udp") == Some(5)).into(),
        uring_submit_passes_ring: (has_uring_result
            && kernel.tracepoint_arguments("io_uring_submit_sqe") == Some(7))
        .into(),
        uring_complete_passes_data: uring_complete_passes_data.into(),
        dirty_pages: kernel.enumerator("I_DIRTY_PAGES").unwrap_or(1 << 2),
        writeback_bit: kernel.enumerator("PG_writeback").unwrap_or(64),
        in_pid_namespace: in_pid_namespace().into(),
        has_loop: has_helper(kernel, "BPF_FUNC_loop").into(),
        has_percpu_lookup: has_percpu_lookup.into(),
        lists_active: (has_percpu_lookup && has_run_queues(offsets)).into(),
        events_wakeup: events_size(host) / 2,
    }
}

/// Whether iterators can be limited to a process, and the tasks in the run queues be counted.
fn has_run_queues(offsets: &Offsets) -> bool {
    ![
        offsets.iter_task,
        offsets.task_cfs_rq,
        offsets.cfs_rq_rq,
        offsets.rq_curr,
        offsets.rq_nr_running,
    ]
    .contains(&MISSING)
}

/// Whether the programs can use a helper of the kernel.
fn has_helper(kernel: &Btf, name: &str) -> bool {
    let unused = std::env::var(UNUSED_HELPERS).unwrap_or_default();
    kernel.enumerator(name).is_some() && !unused.split(',').any(|unused| unused == name)
}

/// Whether the pid namespace is not the initial one, whose inode is fixed
/// (include/uapi/linux/nsfs.h).
fn in_pid_namespace() -> bool {
    const PID_NS_INIT_INO: u32 = 0xefff_fffc;
    let initial = format!("pid:[{PID_NS_INIT_INO}]");
    std::fs::read_link("/proc/self/ns/pid")
        .is_ok_and(|namespace| namespace.as_os_str() != &*initial)
}

/// The iterators that follow and read tasks. The largest program is loaded first.
fn iterators(config: &Config) -> Vec<Hook> {
    let mut iterators = vec![Hook::tasks(SAMPLE), Hook::tasks(MARK)];
    iterators.extend((config.lists_active != 0).then(|| Hook::tasks(SURVEY)));
    iterators
}

/// The tracepoints that follow the target. The largest programs are loaded first.
fn tracepoints(settings: &Settings, kernel: &Btf, offsets: &Offsets) -> Vec<Hook> {
    let mut tracepoints = vec![
        Hook::tracepoint("sched_switch", "sched_switch"),
        Hook::tracepoint("process_exec", "sched_process_exec"),
        Hook::tracepoint("process_fork", "sched_process_fork"),
        Hook::tracepoint("sched_wakeup_new", "sched_wakeup_new"),
    ];
    // With a second argument since Linux 6.16, which calls it while the process has its memory.
    if kernel.tracepoint_arguments("sched_process_exit") >= Some(2) {
        tracepoints.push(Hook::tracepoint("process_exit", "sched_process_exit"));
    }
    if offsets.task_sched_delayed != MISSING && offsets.task_last_queued != MISSING {
        tracepoints.push(Hook::tracepoint("sched_migrate", "sched_migrate_task"));
    }
    if settings.moves {
        tracepoints.push(Hook::tracepoint("cgroup_attach", "cgroup_attach_task"));
    }
    tracepoints
}

/// Entries of the map of processes: `kernel.pid_max` within limits. They take memory only while
/// they are used.
fn processes_max(host: &Host) -> u32 {
    std::fs::read_to_string(host.procfs.join("sys/kernel/pid_max"))
        .ok()
        .and_then(|max| max.trim().parse::<u32>().ok())
        .unwrap_or(32768)
        .clamp(4096, 1 << 18)
}

/// Bytes of the ring buffer of events. A process that starts, runs a program and ends needs 2 kB: each CPU can
/// start 500 of them until the profiler is woken, and as many until events are lost.
fn events_size(host: &Host) -> u32 {
    const MAX: usize = 16 << 20;
    let size = (host.possible_cpus * EVENTS_MIN).next_power_of_two();
    u32::try_from(size.min(MAX)).unwrap_or(u32::MAX)
}

/// Entries of a map of per-key counters: two for each process, within limits. They take memory only
/// while they are used; the hash table itself takes 16 bytes for each.
fn counters_max(host: &Host, settings: &Settings) -> u32 {
    settings
        .max_entries
        .unwrap_or_else(|| (2 * processes_max(host)).clamp(1 << 15, 1 << 18))
}

/// aya loads a rejected program again, with a log. Without a level, the kernel refuses that for another
/// reason than the first time. The lowest one has the reason and not the path to it.
fn verifier_log_level() -> VerifierLogLevel {
    if std::env::var_os(VERIFIER_LOG).is_some() {
        VerifierLogLevel::VERBOSE
    } else {
        VerifierLogLevel::STATS
    }
}
