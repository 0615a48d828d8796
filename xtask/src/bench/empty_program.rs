//! Empty BPF programs at the hooks of other programs: the kernel's own cost per call, including its
//! statistics.

use std::{
    ffi::{CString, c_int, c_long},
    fs, io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result};

use super::loaded::Hook;

/// Numbers of `linux/bpf.h`.
const PROG_LOAD: c_int = 5;
const RAW_TRACEPOINT_OPEN: c_int = 17;
const BTF_GET_FD_BY_ID: c_int = 19;
const TYPE_RAW_TRACEPOINT: u32 = 17;
const TYPE_TRACING: u32 = 26;

/// `r0 = 0; exit`: the first byte is the operation.
static NOTHING: [[u8; 8]; 2] = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];

/// An empty program, attached until it is dropped.
pub struct EmptyProgram {
    program: OwnedFd,
    _link: OwnedFd,
}

/// `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct Load {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log: [u64; 2],
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
    prog_btf_fd: u32,
    func_info_rec_size: u32,
    func_info: u64,
    func_info_cnt: u32,
    line_info_rec_size: u32,
    line_info: u64,
    line_info_cnt: u32,
    attach_btf_id: u32,
    attach_btf_obj_fd: u32,
    reserved: u32,
}

/// `union bpf_attr` for `BPF_RAW_TRACEPOINT_OPEN`.
#[repr(C)]
struct Open {
    name: u64,
    prog_fd: u32,
    reserved: u32,
}

/// `union bpf_attr` for `BPF_BTF_GET_FD_BY_ID`.
#[repr(C)]
struct ById {
    id: u32,
    reserved: [u32; 2],
}

impl EmptyProgram {
    pub fn attach(hook: &Hook) -> Result<Self> {
        let mut load = Load {
            insn_cnt: 2,
            insns: NOTHING.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            prog_name: *b"empty\0\0\0\0\0\0\0\0\0\0\0",
            ..Load::default()
        };
        // These must outlive the system calls below.
        let (name, btf);
        let mut open = Open {
            name: 0,
            prog_fd: 0,
            reserved: 0,
        };
        match hook {
            Hook::RawTracepoint(tracepoint) => {
                name = CString::new(tracepoint.as_str())?;
                load.prog_type = TYPE_RAW_TRACEPOINT;
                open.name = name.as_ptr() as u64;
            }
            Hook::Function {
                attach_type,
                btf: object,
                id,
            } => {
                btf = btf_object(*object).context("opening the kernel's BTF")?;
                load.prog_type = TYPE_TRACING;
                load.expected_attach_type = *attach_type;
                load.attach_btf_id = *id;
                load.attach_btf_obj_fd = number(&btf);
            }
        }
        // SAFETY: the attributes belong to the command, and their pointers are valid.
        let program = unsafe { bpf(PROG_LOAD, &load) }
            .with_context(|| format!("loading an empty program for {hook:?}"))?;
        open.prog_fd = number(&program);
        // SAFETY: as above.
        let link = unsafe { bpf(RAW_TRACEPOINT_OPEN, &open) }
            .with_context(|| format!("attaching an empty program to {hook:?}"))?;
        Ok(Self {
            program,
            _link: link,
        })
    }

    /// Number of runs and their total time in ns.
    pub fn cost(&self) -> Result<(u64, u64)> {
        let path = format!("/proc/self/fdinfo/{}", self.program.as_raw_fd());
        let text = fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
        let number = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok())
                .with_context(|| format!("{path} without {name}"))
        };
        Ok((number("run_cnt:")?, number("run_time_ns:")?))
    }
}

fn btf_object(id: u32) -> io::Result<OwnedFd> {
    let by_id = ById {
        id,
        reserved: [0; 2],
    };
    // SAFETY: the attributes belong to the command.
    unsafe { bpf(BTF_GET_FD_BY_ID, &by_id) }
}

fn number(descriptor: &OwnedFd) -> u32 {
    descriptor.as_raw_fd().cast_unsigned()
}

/// bpf(2), for the commands that return a descriptor.
///
/// # Safety
///
/// The attributes must belong to the command and have no padding, and their pointers must be valid.
unsafe fn bpf<A>(command: c_int, attributes: &A) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `size_of::<A>()` bytes; their meaning is the caller's obligation.
    let result: c_long = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<A>(),
        )
    };
    let descriptor = c_int::try_from(result).map_err(io::Error::other)?;
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
