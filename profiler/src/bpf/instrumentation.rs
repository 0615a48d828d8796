//! Instrumentation of a source: the hooks of its collection methods, and their attach result.
//!
//! The method is selected by trial: the first one whose hooks all load and attach is used.

use std::{
    collections::HashMap,
    iter,
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use aya::{
    Btf, Ebpf,
    programs::{Program, ProgramError},
};

use super::error::{BpfError, HookError};
use crate::support::worker::in_threads_with;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// A tracepoint of the kernel (`tp_btf`).
    Tracepoint,
    /// The entry of a kernel function.
    Fentry,
    /// The return of a kernel function.
    Fexit,
    /// An iterator over kernel objects of a kind.
    Iterator,
    /// An iterator whose program can sleep.
    SleepableIterator,
}

/// A program and the hook to which it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Name of the program.
    pub program: &'static str,
    pub kind: HookKind,
    /// Tracepoint, kernel function or kind of objects.
    pub function: &'static str,
    /// Its name in older kernels.
    pub formerly: Option<&'static str>,
}

impl Hook {
    const fn new(program: &'static str, kind: HookKind, function: &'static str) -> Self {
        Self {
            program,
            kind,
            function,
            formerly: None,
        }
    }

    /// A program at a tracepoint.
    pub const fn tracepoint(program: &'static str, function: &'static str) -> Self {
        Self::new(program, HookKind::Tracepoint, function)
    }

    /// A program at the entry of a kernel function.
    pub const fn fentry(program: &'static str, function: &'static str) -> Self {
        Self::new(program, HookKind::Fentry, function)
    }

    /// A program at the return of a kernel function.
    pub const fn fexit(program: &'static str, function: &'static str) -> Self {
        Self::new(program, HookKind::Fexit, function)
    }

    /// A program that iterates over all tasks.
    pub const fn tasks(program: &'static str) -> Self {
        Self::new(program, HookKind::Iterator, "task")
    }

    /// The same, with a program that can sleep.
    pub const fn tasks_sleepable(program: &'static str) -> Self {
        Self::new(program, HookKind::SleepableIterator, "task")
    }

    /// The same hook, with its name in older kernels.
    #[must_use]
    pub const fn formerly(self, function: &'static str) -> Self {
        Self {
            formerly: Some(function),
            ..self
        }
    }

    /// The hook as in an ELF section: `tp_btf/sched_switch`.
    pub fn name(&self) -> String {
        let kind = match self.kind {
            HookKind::Tracepoint => "tp_btf",
            HookKind::Fentry => "fentry",
            HookKind::Fexit => "fexit",
            HookKind::Iterator => "iter",
            HookKind::SleepableIterator => "iter.s",
        };
        format!("{kind}/{}", self.function)
    }

    /// Names of the type by which aya finds it.
    pub(super) fn type_names(self) -> impl Iterator<Item = String> {
        let prefix = match self.kind {
            HookKind::Tracepoint => "btf_trace_",
            HookKind::Fentry | HookKind::Fexit => "",
            HookKind::Iterator | HookKind::SleepableIterator => "bpf_iter_",
        };
        let names = iter::once(self.function).chain(self.formerly);
        names.map(move |name| format!("{prefix}{name}"))
    }
}

/// A collection method.
#[derive(Debug)]
pub struct Method {
    /// Its name, as in `--source file_io=syscalls`.
    pub name: &'static str,
    /// Required hooks. A method without hooks uses values that the kernel maintains for every task.
    pub hooks: &'static [Hook],
    /// Hooks without which some columns are null.
    pub optional: &'static [Hook],
    /// Limitations, for messages; empty if there are none.
    pub without: &'static str,
    /// Whether it is used only if it is named.
    pub on_request: bool,
    /// Counts of its programs at `sys_enter` and `sys_exit`: bits of
    /// [`syscalls`](profiler_ebpf::config::syscalls).
    pub syscalls: u32,
}

impl Method {
    /// A method with these required hooks.
    pub const fn new(name: &'static str, hooks: &'static [Hook]) -> Self {
        Self {
            name,
            hooks,
            optional: &[],
            without: "",
            on_request: false,
            syscalls: 0,
        }
    }

    /// Adds optional hooks.
    #[must_use]
    pub const fn optional(self, optional: &'static [Hook]) -> Self {
        Self { optional, ..self }
    }

    /// Adds limitations.
    #[must_use]
    pub const fn without(self, without: &'static str) -> Self {
        Self { without, ..self }
    }

    /// Uses the method only if it is named.
    #[must_use]
    pub const fn on_request(self) -> Self {
        Self {
            on_request: true,
            ..self
        }
    }

    /// Sets the counts at `sys_enter` and `sys_exit`.
    #[must_use]
    pub const fn syscalls(self, syscalls: u32) -> Self {
        Self { syscalls, ..self }
    }
}

/// The BPF programs that one source needs.
#[derive(Debug)]
pub struct Instrumentation {
    /// Name of the source.
    pub source: &'static str,
    /// Names of the maps that its programs fill and that the profiler sizes.
    pub maps: &'static [&'static str],
    /// Collection methods in order of preference.
    pub methods: &'static [Method],
    /// Optional hooks of every method.
    pub optional: &'static [Hook],
}

/// A requested instrumentation.
#[derive(Clone, Copy, Debug)]
pub struct Requested {
    pub instrumentation: &'static Instrumentation,
    /// Name of the method, if one was requested.
    pub method: Option<&'static str>,
}

impl Requested {
    /// The hooks of all methods.
    pub fn hooks(self) -> impl Iterator<Item = &'static Hook> {
        let of_methods = self
            .methods()
            .flat_map(|method| method.hooks.iter().chain(method.optional));
        of_methods.chain(self.instrumentation.optional)
    }

    /// The methods to try, in order.
    pub fn methods(self) -> impl Iterator<Item = &'static Method> {
        let methods = self.instrumentation.methods.iter();
        methods.filter(move |method| match self.method {
            Some(name) => method.name == name,
            None => !method.on_request,
        })
    }
}

/// The result of attaching an instrumentation.
#[derive(Clone, Debug)]
pub struct AttachResult {
    /// Name of the source.
    pub source: &'static str,
    /// Name of the selected method.
    pub method: Option<&'static str>,
    /// Names of the maps that the attached programs fill.
    pub maps: &'static [&'static str],
    /// Hooks that are not available: the first one of each method that was rejected, and optional
    /// hooks of the selected method.
    pub missing: Vec<Missing>,
}

/// A hook that is not available.
#[derive(Clone, Debug)]
pub struct Missing {
    /// Name of the method that needs it.
    pub method: &'static str,
    pub hook: Hook,
    /// The cause.
    pub error: HookError,
}

impl AttachResult {
    /// Whether a program of the selected method is missing.
    pub fn is_missing(&self, program: &str) -> bool {
        let method = self.method;
        self.missing
            .iter()
            .any(|missing| Some(missing.method) == method && missing.hook.program == program)
    }
}

/// An attached program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Name of the program.
    pub program: &'static str,
    /// Its hook: `tp_btf/sched_switch`.
    pub hook: String,
}

impl From<&Hook> for Attached {
    fn from(hook: &Hook) -> Self {
        Self {
            program: hook.program,
            hook: hook.name(),
        }
    }
}

/// Why the kernel has rejected programs, by their names.
pub type Rejected = HashMap<&'static str, BpfError>;

/// Loads the programs of these hooks, and of the method of each instrumentation that is tried first,
/// in parallel: the verifier takes a tenth of a second for all of them. Returns those that the
/// kernel rejects, and what `meanwhile` returns, which this thread calls first.
pub fn load_all<R>(
    ebpf: &mut Ebpf,
    btf: &Btf,
    hooks: &[Hook],
    requested: &[Requested],
    meanwhile: impl FnOnce() -> R,
) -> (Rejected, R) {
    // More would only wait for locks of the kernel.
    const THREADS_MAX: usize = 8;
    let mut sets = vec![HookSet::new(hooks.iter())];
    for requested in requested {
        let optional = requested.instrumentation.optional.iter();
        if let Some(method) = requested.methods().next() {
            sets.push(HookSet::new(method.hooks.iter()));
            sets.push(HookSet::new(method.optional.iter().chain(optional)));
        }
    }
    let mut programs: HashMap<&str, &mut Program> = ebpf.programs_mut().collect();
    let mut queue = Vec::new();
    for set in &sets {
        let hooks = set.hooks.iter();
        queue.extend(hooks.filter_map(|hook| Some((set, *hook, programs.remove(hook.program)?))));
    }
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = threads.min(THREADS_MAX).min(queue.len());
    let queue = Mutex::new(queue.into_iter());
    let rejected = Mutex::new(Rejected::new());
    let load_rest = || {
        loop {
            let next = queue.lock().expect("not held while loading").next();
            let Some((set, hook, program)) = next else {
                return;
            };
            let of_function = matches!(hook.kind, HookKind::Fentry | HookKind::Fexit);
            if of_function && set.is_refused.load(Ordering::Relaxed) {
                continue;
            }
            if let Err(error) = load(program, hook, hook.function, btf) {
                set.is_refused.fetch_or(of_function, Ordering::Relaxed);
                let mut rejected = rejected.lock().expect("not held while loading");
                rejected.insert(hook.program, error);
            }
        }
    };
    let result = in_threads_with(threads, meanwhile, load_rest);
    let rejected = rejected.into_inner().expect("not held while loading");
    (rejected, result)
}

/// Hooks. If one at a function is refused, the others at functions are not tried.
struct HookSet<'a> {
    hooks: Vec<&'a Hook>,
    is_refused: AtomicBool,
}

impl<'a> HookSet<'a> {
    fn new(hooks: impl Iterator<Item = &'a Hook>) -> Self {
        Self {
            hooks: hooks.collect(),
            is_refused: AtomicBool::new(false),
        }
    }
}

/// Removes the programs that are loaded and not attached: those of methods that this kernel does not
/// support.
pub fn unload_unused(ebpf: &mut Ebpf, attached: &[Attached]) {
    for (name, program) in ebpf.programs_mut() {
        if !attached.iter().any(|attached| attached.program == name) {
            unload(program);
        }
    }
}

/// Loads a program, unless it is loaded.
pub fn load(program: &mut Program, hook: &Hook, function: &str, btf: &Btf) -> Result<(), BpfError> {
    if program.fd().is_ok() {
        return Ok(());
    }
    let result = match program {
        Program::BtfTracePoint(program) => program.load(function, btf),
        Program::FEntry(program) => program.load(function, btf),
        Program::FExit(program) => program.load(function, btf),
        Program::Iter(program) => program.load(function, btf),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    if result.is_err() {
        unload(program);
    }
    result.map_err(|error| BpfError::load(hook.program, error))
}

/// Attaches the first method that this kernel supports.
pub fn attach_method(
    ebpf: &mut Ebpf,
    btf: &Btf,
    requested: Requested,
    rejected: &mut Rejected,
    attached: &mut Vec<Attached>,
) -> AttachResult {
    let instrumentation = requested.instrumentation;
    let mut result = AttachResult {
        source: instrumentation.source,
        method: None,
        maps: &[],
        missing: Vec::new(),
    };
    for method in requested.methods() {
        let missing = |(hook, error): (&Hook, BpfError)| Missing {
            method: method.name,
            hook: *hook,
            error: HookError::from(&error),
        };
        let before = attached.len();
        let mut attach = |hook| {
            attach(ebpf, btf, hook, rejected, attached)
                .err()
                .map(|error| (hook, error))
        };
        if let Some(failed) = method.hooks.iter().find_map(&mut attach) {
            result.missing.push(missing(failed));
            for program in attached.drain(before..) {
                ebpf.program_mut(program.program).map(unload);
            }
            continue;
        }
        let optional = instrumentation.optional.iter().chain(method.optional);
        result
            .missing
            .extend(optional.filter_map(attach).map(missing));
        result.method = Some(method.name);
        if !method.hooks.is_empty() {
            result.maps = instrumentation.maps;
        }
        break;
    }
    result
}

/// Loads and attaches a program, unless another instrumentation has done so.
pub fn attach(
    ebpf: &mut Ebpf,
    btf: &Btf,
    hook: &Hook,
    rejected: &mut Rejected,
    attached: &mut Vec<Attached>,
) -> Result<(), BpfError> {
    if attached
        .iter()
        .any(|attached| attached.program == hook.program)
    {
        return Ok(());
    }
    let program = ebpf.program_mut(hook.program);
    let program = program.ok_or(BpfError::NoProgram(hook.program))?;
    let result = match rejected.remove(hook.program) {
        Some(error) => Err(error),
        None => attach_to(program, btf, hook, hook.function),
    };
    let (function, result) = match (result, hook.formerly) {
        // If both names fail, the cause is that of the present one.
        (Err(error), Some(former)) => (
            former,
            attach_to(program, btf, hook, former).map_err(|_| error),
        ),
        (result, _) => (hook.function, result),
    };
    if result.is_ok() {
        attached.push(Attached {
            program: hook.program,
            hook: Hook { function, ..*hook }.name(),
        });
    }
    result
}

/// Loads and attaches a program; it remains unloaded if that fails.
fn attach_to(
    program: &mut Program,
    btf: &Btf,
    hook: &Hook,
    function: &str,
) -> Result<(), BpfError> {
    load(program, hook, function, btf)?;
    let result = match program {
        Program::BtfTracePoint(program) => program.attach().map(drop),
        Program::FEntry(program) => program.attach().map(drop),
        Program::FExit(program) => program.attach().map(drop),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    if result.is_err() {
        unload(program);
    }
    result.map_err(|error| BpfError::attach(hook.program, error))
}

fn unload(program: &mut Program) {
    // The only error is that the program is not loaded.
    let _ = match program {
        Program::BtfTracePoint(program) => program.unload(),
        Program::FEntry(program) => program.unload(),
        Program::FExit(program) => program.unload(),
        _ => Ok(()),
    };
}
