//! Errors of the BPF layer.

use std::{
    error::Error,
    io::{self, ErrorKind},
    iter,
};

use aya::{EbpfError, maps::MapError, programs::ProgramError};
use thiserror::Error;

use super::btf::BtfError;
use crate::{failure::os_error::without_code, host::refusal, privileges::may_load_bpf};

/// Environment variable with which error messages include the log of the verifier. It makes loading
/// slower.
pub(super) const VERIFIER_LOG: &str = "PROFILER_VERIFIER_LOG";

/// Why an operation on the BPF programs or their maps failed.
///
/// [`BpfError::describe`] includes the causes.
#[derive(Debug, Error)]
pub enum BpfError {
    /// The kernel's type information cannot be read.
    #[error("no BTF")]
    Btf(#[from] BtfError),
    /// aya cannot parse the kernel's type information.
    #[error("parsing the kernel's BTF")]
    ParseBtf(#[source] aya::BtfError),
    /// The kernel does not have all required members.
    #[error("this kernel's BTF has no {}", .0.join(", "))]
    MissingMembers(Vec<&'static str>),
    /// The object cannot be parsed, or a map cannot be created.
    #[error("loading the BPF object")]
    Object(#[source] EbpfError),
    /// The program file does not have the object as it was built.
    #[error("the BPF object in the program file is damaged")]
    Damaged(#[source] io::Error),
    /// The object does not contain a program.
    #[error("the BPF object has no program `{0}`")]
    NoProgram(&'static str),
    /// The object does not contain a map.
    #[error("the BPF object has no map `{0}`")]
    NoMap(&'static str),
    /// A map in the object has another type than its declaration.
    #[error("type of BPF map {map}")]
    MapType {
        /// Name of the map.
        map: &'static str,
        /// The difference.
        source: MapError,
    },
    /// The kernel rejects a program.
    #[error("loading BPF program `{program}`")]
    Load {
        /// Name of the program.
        program: &'static str,
        /// The cause.
        source: ProgramError,
    },
    /// A program cannot be attached.
    #[error("attaching BPF program `{program}`")]
    Attach {
        /// Name of the program.
        program: &'static str,
        /// The cause.
        source: ProgramError,
    },
    /// An iterator cannot be opened.
    #[error("opening BPF iterator `{iterator}`")]
    OpenIterator {
        /// Name of the program.
        iterator: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// An iterator cannot be read.
    #[error("reading BPF iterator `{iterator}`")]
    ReadIterator {
        /// Name of the program.
        iterator: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// An entry of a map cannot be read.
    #[error("reading BPF map {map}")]
    ReadMap {
        /// Name of the map.
        map: &'static str,
        /// The cause.
        source: MapError,
    },
    /// The entries of a map cannot be read.
    #[error("reading all entries of BPF map {map}")]
    ReadEntries {
        /// Name of the map.
        map: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// An entry of a map cannot be written or removed.
    #[error("writing BPF map {map}")]
    WriteMap {
        /// Name of the map.
        map: &'static str,
        /// The cause.
        source: MapError,
    },
}

impl BpfError {
    pub(super) fn load(program: &'static str, error: ProgramError) -> Self {
        Self::Load {
            program,
            source: error,
        }
    }

    pub(super) fn attach(program: &'static str, error: ProgramError) -> Self {
        Self::Attach {
            program,
            source: error,
        }
    }

    /// Whether the kernel does not permit the operation.
    pub fn is_denied(&self) -> bool {
        !matches!(self, Self::Btf(_)) && denied(self).is_some()
    }

    /// The error with all its causes, in one line unless the verifier's log was requested.
    pub fn describe(&self) -> String {
        let message = chain(self);
        if self.is_denied() {
            format!("bpf() is denied: {message}")
        } else {
            message
        }
    }

    /// How the error can be resolved.
    pub fn remedy(&self) -> String {
        match self {
            Self::Btf(_) => "run a kernel built with CONFIG_DEBUG_INFO_BTF=y".to_owned(),
            Self::MissingMembers(_) => "run Linux 5.15 or later".to_owned(),
            _ if self.is_denied() && may_load_bpf() => {
                refusal("/proc".as_ref(), "/sys".as_ref())
            }
            _ if self.is_denied() => {
                "run as root, or: setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep profiler".to_owned()
            }
            _ => {
                format!("report this with the output of `{VERIFIER_LOG}=1 profiler check --json`")
            }
        }
    }
}

/// Why a hook is not available.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HookError {
    /// The kernel does not permit the program: EPERM or EACCES.
    #[error("not permitted ({0})")]
    NotPermitted(&'static str),
    /// The kernel has no such tracepoint or function.
    #[error("this kernel has none")]
    Absent,
    /// The kernel cannot attach programs to functions.
    #[error("not supported by this kernel (ENOTSUPP)")]
    NotSupported,
    /// Another error.
    #[error("{0}")]
    Failed(String),
}

impl From<&BpfError> for HookError {
    fn from(error: &BpfError) -> Self {
        let (BpfError::Load { source, .. } | BpfError::Attach { source, .. }) = error else {
            return Self::Failed(error.describe());
        };
        match (source, denied(error)) {
            (ProgramError::Btf(aya::BtfError::UnknownBtfTypeName { .. }), _) => Self::Absent,
            (_, Some(errno)) => Self::NotPermitted(errno),
            _ if number(error) == Some(ENOTSUPP) => Self::NotSupported,
            (source, None) => Self::Failed(chain(source)),
        }
    }
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    iter::successors(Some(error), |error| (*error).source())
}

/// The kernel's error number for operations that an architecture does not have (include/linux/errno.h).
const ENOTSUPP: i32 = 524;

fn number(error: &(dyn Error + 'static)) -> Option<i32> {
    causes(error).find_map(|error| error.downcast_ref::<io::Error>()?.raw_os_error())
}

/// The name of the error number with which the kernel denied the operation. The verifier uses EACCES for
/// programs that it rejects.
fn denied(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut loads = causes(error).filter_map(|error| error.downcast_ref::<ProgramError>());
    if loads.any(|error| !verifier_log(error).is_empty()) {
        return None;
    }
    let denial = causes(error).find_map(|error| {
        let error = error.downcast_ref::<io::Error>()?;
        (error.kind() == ErrorKind::PermissionDenied).then_some(error)
    })?;
    Some(if denial.raw_os_error() == Some(libc::EACCES) {
        "EACCES"
    } else {
        "EPERM"
    })
}

/// The verifier's log of a rejected program; empty if it was not verified.
fn verifier_log(error: &ProgramError) -> String {
    match error {
        ProgramError::LoadError { verifier_log, .. } => verifier_log.to_string(),
        _ => String::new(),
    }
}

/// Why the verifier rejected a program: one line, or the complete log if [`VERIFIER_LOG`] is set.
fn reason(log: &str) -> String {
    const STATISTICS: [&str; 3] = ["processed ", "verification time ", "stack depth "];
    if std::env::var_os(VERIFIER_LOG).is_some() {
        return log.to_owned();
    }
    let is_reason =
        |line: &&str| !line.is_empty() && !STATISTICS.iter().any(|start| line.starts_with(start));
    let lines: Vec<&str> = log.lines().map(str::trim).filter(is_reason).collect();
    lines.join("; ")
}

/// The messages of an error and its causes. aya repeats some causes in the message.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut message = String::new();
    for error in causes(error) {
        let text = match error.downcast_ref::<ProgramError>() {
            Some(error @ ProgramError::LoadError { .. }) => match &*verifier_log(error) {
                "" => "rejected by the kernel".to_owned(),
                log => format!("rejected by the verifier: {}", reason(log)),
            },
            _ => without_code(&error.to_string()).into_owned(),
        };
        if message.is_empty() {
            message = text;
        } else if !message.ends_with(&text) {
            message = format!("{message}: {text}");
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use aya::sys::SyscallError;

    use super::*;

    fn load_error(errno: i32) -> BpfError {
        let error = SyscallError {
            call: "bpf_prog_load",
            io_error: io::Error::from_raw_os_error(errno),
        };
        BpfError::load("mark", error.into())
    }

    #[test]
    fn messages_are_one_line_with_all_causes() {
        assert_eq!(
            load_error(libc::EINVAL).describe(),
            "loading BPF program `mark`: `bpf_prog_load` failed: Invalid argument"
        );
        let denied = load_error(libc::EPERM);
        assert!(denied.is_denied());
        assert!(
            denied
                .describe()
                .starts_with("bpf() is denied: loading BPF program `mark`")
        );
        let read = BpfError::ReadEntries {
            map: "NET_IO",
            source: io::Error::from_raw_os_error(libc::EINVAL),
        };
        assert_eq!(
            read.describe(),
            "reading all entries of BPF map NET_IO: Invalid argument"
        );
    }

    #[test]
    fn reasons_of_the_verifier_are_one_line() {
        let log = "func 'tcp_recvmsg' doesn't have 7-th argument\n\
                   invalid bpf_context access off=48 size=8\n\
                   processed 8 insns (limit 1000000) max_states_per_insn 0\n\
                   verification time 93 usec\nstack depth 0\n";
        assert_eq!(
            reason(log),
            "func 'tcp_recvmsg' doesn't have 7-th argument; invalid bpf_context access off=48 size=8"
        );
    }

    #[test]
    fn reasons_of_hooks_are_short() {
        let reason = |errno| HookError::from(&load_error(errno)).to_string();
        assert_eq!(reason(libc::EPERM), "not permitted (EPERM)");
        assert_eq!(reason(libc::EACCES), "not permitted (EACCES)");
        assert_eq!(reason(ENOTSUPP), "not supported by this kernel (ENOTSUPP)");
        assert_eq!(
            reason(libc::E2BIG),
            "`bpf_prog_load` failed: Argument list too long"
        );
    }
}
