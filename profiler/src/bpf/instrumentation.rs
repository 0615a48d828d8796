//! What the sources want attached, and which of several ways this kernel allows.
//!
//! Chosen by trial: a way is taken when all its hooks load and attach.

use aya::{
    Btf, BtfError, Ebpf,
    programs::{BtfTracePoint, FEntry, FExit, Program, ProgramError},
};

use super::programs::{describe, program};

/// Where a program is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// `tp_btf`: a tracepoint of the kernel.
    Tracepoint,
    /// The start of a kernel function.
    Fentry,
    /// The end of a kernel function.
    Fexit,
}

/// A program and where it is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Name of the program.
    pub program: &'static str,
    /// Kind of hook.
    pub kind: HookKind,
    /// Tracepoint or kernel function.
    pub function: &'static str,
    /// What older kernels call it.
    pub formerly: Option<&'static str>,
}

impl Hook {
    /// A program at a tracepoint.
    pub const fn tracepoint(program: &'static str, function: &'static str) -> Self {
        Self {
            program,
            kind: HookKind::Tracepoint,
            function,
            formerly: None,
        }
    }

    /// A program at the start of a kernel function.
    pub const fn fentry(program: &'static str, function: &'static str) -> Self {
        Self {
            program,
            kind: HookKind::Fentry,
            function,
            formerly: None,
        }
    }

    /// A program at the end of a kernel function.
    pub const fn fexit(program: &'static str, function: &'static str) -> Self {
        Self {
            program,
            kind: HookKind::Fexit,
            function,
            formerly: None,
        }
    }

    /// The same, which older kernels call otherwise.
    #[must_use]
    pub const fn formerly(self, function: &'static str) -> Self {
        Self {
            formerly: Some(function),
            ..self
        }
    }

    /// As in an ELF section: `tp_btf/sched_switch`.
    pub fn name(&self) -> String {
        let kind = match self.kind {
            HookKind::Tracepoint => "tp_btf",
            HookKind::Fentry => "fentry",
            HookKind::Fexit => "fexit",
        };
        format!("{kind}/{}", self.function)
    }
}

/// One way to account something.
#[derive(Debug)]
pub struct Method {
    /// Its name, as in `--source file_io=syscalls`.
    pub name: &'static str,
    /// Without any of these it cannot be taken; none: it takes what is known of every process.
    pub hooks: &'static [Hook],
    /// Without these some columns are null.
    pub optional: &'static [Hook],
    /// What it cannot tell, in words; empty when it tells all.
    pub without: &'static str,
    /// Taken only when asked for by name.
    pub on_request: bool,
}

/// What a source accounts in the kernel.
#[derive(Debug)]
pub struct Instrumentation {
    /// The source.
    pub source: &'static str,
    /// Its own maps.
    pub maps: &'static [&'static str],
    /// The ways, best first.
    pub methods: &'static [Method],
    /// As [`Method::optional`], with any way.
    pub optional: &'static [Hook],
}

/// A feature that is wanted, and the way if one was named.
#[derive(Clone, Copy, Debug)]
pub struct Requested {
    /// Which.
    pub instrumentation: &'static Instrumentation,
    /// Name of the way that was asked for.
    pub method: Option<&'static str>,
}

/// What became of a feature.
#[derive(Clone, Debug)]
pub struct AttachResult {
    /// The source.
    pub source: &'static str,
    /// The way that was taken.
    pub method: Option<&'static str>,
    /// Whether it has hooks, which fill the feature's maps.
    pub hooked: bool,
    /// Why the ways before it were not taken, and which optional hooks are missing.
    pub missing: Vec<Missing>,
}

/// A hook that could not be had.
#[derive(Clone, Debug)]
pub struct Missing {
    /// Of which way.
    pub method: &'static str,
    /// Which.
    pub hook: Hook,
    /// Why.
    pub why: String,
}

impl AttachResult {
    /// Whether this program runs.
    pub fn is_missing(&self, program: &str) -> bool {
        let method = self.method;
        self.missing
            .iter()
            .any(|missing| Some(missing.method) == method && missing.hook.program == program)
    }
}

/// A program that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Its name.
    pub program: &'static str,
    /// Where: `tp_btf/sched_switch`.
    pub hook: String,
}

/// Takes the best way that this kernel allows.
pub fn take_way(
    ebpf: &mut Ebpf,
    btf: &Btf,
    wanted: Requested,
    attached: &mut Vec<Attached>,
) -> AttachResult {
    let mut result = AttachResult {
        source: wanted.instrumentation.source,
        method: None,
        hooked: false,
        missing: Vec::new(),
    };
    let methods = wanted
        .instrumentation
        .methods
        .iter()
        .filter(|method| match wanted.method {
            Some(name) => method.name == name,
            None => !method.on_request,
        });
    for method in methods {
        let before = attached.len();
        let failed = method
            .hooks
            .iter()
            .find_map(|hook| Some((hook, attach(ebpf, btf, hook, attached).err()?)));
        if let Some((hook, why)) = failed {
            for taken in attached.drain(before..) {
                unload(ebpf, taken.program);
            }
            result.missing.push(Missing {
                method: method.name,
                hook: *hook,
                why,
            });
            continue;
        }
        for hook in wanted
            .instrumentation
            .optional
            .iter()
            .chain(method.optional)
        {
            if let Err(why) = attach(ebpf, btf, hook, attached) {
                result.missing.push(Missing {
                    method: method.name,
                    hook: *hook,
                    why,
                });
            }
        }
        result.method = Some(method.name);
        result.hooked = !method.hooks.is_empty();
        break;
    }
    result
}

/// Loads and attaches; nothing to do when another feature has.
fn attach(
    ebpf: &mut Ebpf,
    btf: &Btf,
    hook: &Hook,
    attached: &mut Vec<Attached>,
) -> Result<(), String> {
    if attached
        .iter()
        .any(|attached| attached.program == hook.program)
    {
        return Ok(());
    }
    let mut refused = String::new();
    for function in [Some(hook.function), hook.formerly].into_iter().flatten() {
        match attach_to(ebpf, btf, hook, function) {
            Ok(()) => {
                attached.push(Attached {
                    program: hook.program,
                    hook: Hook { function, ..*hook }.name(),
                });
                return Ok(());
            }
            Err(why) => {
                unload(ebpf, hook.program);
                if refused.is_empty() {
                    refused = why;
                }
            }
        }
    }
    Err(refused)
}

/// The answer of the kernel to what it does not permit.
pub const REFUSED: &str = "not permitted (EPERM)";

/// Why a program does not load, in few words where it is one of the usual reasons.
fn why(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError { io_error, .. }
            if io_error.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            REFUSED.to_owned()
        }
        ProgramError::Btf(BtfError::UnknownBtfTypeName { .. }) => "this kernel has none".to_owned(),
        error => describe(error).0,
    }
}

fn attach_to(ebpf: &mut Ebpf, btf: &Btf, hook: &Hook, function: &str) -> Result<(), String> {
    macro_rules! attach_as {
        ($kind:ty) => {
            program(ebpf, hook.program)
                .map_err(|error| error.to_string())
                .and_then(|program: &mut $kind| {
                    let load = program.load(function, btf);
                    load.and_then(|()| program.attach().map(drop))
                        .map_err(|error| why(&error))
                })
        };
    }
    match hook.kind {
        HookKind::Tracepoint => attach_as!(BtfTracePoint),
        HookKind::Fentry => attach_as!(FEntry),
        HookKind::Fexit => attach_as!(FExit),
    }
}

fn unload(ebpf: &mut Ebpf, name: &str) {
    // It was not loaded, or it is gone: nothing else can be wrong.
    let _ = match ebpf.program_mut(name) {
        Some(Program::BtfTracePoint(program)) => program.unload(),
        Some(Program::FEntry(program)) => program.unload(),
        Some(Program::FExit(program)) => program.unload(),
        _ => Ok(()),
    };
}
