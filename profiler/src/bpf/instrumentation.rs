//! Instrumentation of a source: the hooks of its collection methods, and their attach result.
//!
//! The method is selected by trial: the first one whose hooks all load and attach is used.

use aya::{
    Btf, Ebpf,
    programs::{BtfTracePoint, FEntry, FExit, Program},
};

use super::{
    error::{BpfError, HookError},
    object::program,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// A tracepoint of the kernel (`tp_btf`).
    Tracepoint,
    /// The entry of a kernel function.
    Fentry,
    /// The return of a kernel function.
    Fexit,
}

/// A program and the hook to which it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Name of the program.
    pub program: &'static str,
    pub kind: HookKind,
    /// Tracepoint or kernel function.
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
        };
        format!("{kind}/{}", self.function)
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
    /// Names of the maps that its programs fill and that the controller sizes.
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

/// Attaches the first method that this kernel supports.
pub fn attach_method(
    ebpf: &mut Ebpf,
    btf: &Btf,
    requested: Requested,
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
            attach(ebpf, btf, hook, attached)
                .err()
                .map(|error| (hook, error))
        };
        if let Some(failed) = method.hooks.iter().find_map(&mut attach) {
            result.missing.push(missing(failed));
            for program in attached.drain(before..) {
                unload(ebpf, program.program);
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
fn attach(
    ebpf: &mut Ebpf,
    btf: &Btf,
    hook: &Hook,
    attached: &mut Vec<Attached>,
) -> Result<(), BpfError> {
    if attached
        .iter()
        .any(|attached| attached.program == hook.program)
    {
        return Ok(());
    }
    let result = attach_to(ebpf, btf, hook, hook.function);
    let (function, result) = match (result, hook.formerly) {
        (Err(error), Some(former)) => {
            unload(ebpf, hook.program);
            // If both names fail, the cause is that of the present one.
            (
                former,
                attach_to(ebpf, btf, hook, former).map_err(|_| error),
            )
        }
        (result, _) => (hook.function, result),
    };
    match result {
        Ok(()) => attached.push(Attached {
            program: hook.program,
            hook: Hook { function, ..*hook }.name(),
        }),
        Err(_) => unload(ebpf, hook.program),
    }
    result
}

fn attach_to(ebpf: &mut Ebpf, btf: &Btf, hook: &Hook, function: &str) -> Result<(), BpfError> {
    macro_rules! attach_as {
        ($kind:ty) => {{
            let program: &mut $kind = program(ebpf, hook.program)?;
            program
                .load(function, btf)
                .map_err(|error| BpfError::load(hook.program, error))?;
            program
                .attach()
                .map(drop)
                .map_err(|error| BpfError::attach(hook.program, error))
        }};
    }
    match hook.kind {
        HookKind::Tracepoint => attach_as!(BtfTracePoint),
        HookKind::Fentry => attach_as!(FEntry),
        HookKind::Fexit => attach_as!(FExit),
    }
}

fn unload(ebpf: &mut Ebpf, name: &str) {
    // The only error is that the program is not loaded.
    let _ = match ebpf.program_mut(name) {
        Some(Program::BtfTracePoint(program)) => program.unload(),
        Some(Program::FEntry(program)) => program.unload(),
        Some(Program::FExit(program)) => program.unload(),
        _ => Ok(()),
    };
}
