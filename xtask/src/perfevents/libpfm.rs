//! libpfm4's idea of an event, asked of the library itself.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    fmt,
    mem::transmute,
};

use perfevents::{Event, Uarch};

const LIBRARY: &CStr = c"libpfm.so.4";
/// `PFM_OS_NONE`: codes as the processor takes them.
const OS_NONE: c_int = 0;
/// `PFM_PLM0 | PFM_PLM3`.
const USER_AND_KERNEL: c_int = 1 | 8;
/// Bits of an x86 code that are not the event's own: privilege levels, interrupt, enable.
const CONTROL_BITS: u64 = 1 << 16 | 1 << 17 | 1 << 20 | 1 << 22;

/// `pfm_pmu_encode_arg_t` (perfmon/pfmlib.h).
#[repr(C)]
struct EncodeArg {
    codes: *mut u64,
    name: *mut *mut c_char,
    size: usize,
    count: c_int,
    index: c_int,
}

type Initialize = unsafe extern "C" fn() -> c_int;
type Encode = unsafe extern "C" fn(*const c_char, c_int, c_int, *mut c_void) -> c_int;

/// The library, which stays loaded.
pub struct Libpfm {
    encode: Encode,
}

/// An event as libpfm4 has it.
pub struct Theirs {
    code: u64,
    /// Value of the event's other register, if it has one.
    extra: Option<u64>,
}

impl fmt::Display for Theirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.code)?;
        match self.extra {
            Some(extra) => write!(f, " and {extra:#x}"),
            None => Ok(()),
        }
    }
}

impl Theirs {
    /// Whether it is the same encoding.
    pub fn agrees(&self, event: &Event) -> bool {
        let field = |name: &str| event.code.get(name).copied().unwrap_or(0);
        let number = field("event");
        let ours = number & 0xff
            | (number >> 8) << 32
            | field("umask") << 8
            | field("edge") << 18
            | field("inv") << 23
            | field("cmask") << 24;
        ours == self.code && event.code.get("offcore_rsp").copied() == self.extra
    }
}

impl Libpfm {
    /// Loads the library, told to encode events of other processors too.
    pub fn open() -> Result<Self, String> {
        // SAFETY: a library without constructors of consequence; nothing else runs yet.
        let library = unsafe {
            libc::setenv(c"LIBPFM_ENCODE_INACTIVE".as_ptr(), c"1".as_ptr(), 1);
            libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW)
        };
        if library.is_null() {
            return Err("it is not installed".to_owned());
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library is loaded.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            if symbol.is_null() {
                return Err(format!("it has no {}", name.to_string_lossy()));
            }
            Ok(symbol)
        };
        // SAFETY: declared like this in perfmon/pfmlib.h.
        let initialize =
            unsafe { transmute::<*mut c_void, Initialize>(symbol(c"pfm_initialize")?) };
        // SAFETY: likewise.
        let encode =
            unsafe { transmute::<*mut c_void, Encode>(symbol(c"pfm_get_os_event_encoding")?) };
        // SAFETY: to be called once, before all else.
        let status = unsafe { initialize() };
        if status != 0 {
            return Err(format!("it does not start ({status})"));
        }
        Ok(Self { encode })
    }

    /// What it has under the vendor's name of the event; `None` when it knows no such one, or the processor.
    pub fn compare(&self, uarch: &Uarch, name: &str, event: &Event) -> Option<Theirs> {
        let pmu = pmu_of(&uarch.id, &event.pmu)?;
        let name = name.replacen('.', ":", 1);
        let text = CString::new(format!("{pmu}::{name}")).ok()?;
        let mut codes = [0_u64; 8];
        let mut argument = EncodeArg {
            codes: codes.as_mut_ptr(),
            name: std::ptr::null_mut(),
            size: size_of::<EncodeArg>(),
            count: 8,
            index: 0,
        };
        // SAFETY: the argument is what `OS_NONE` wants, and there is room for as many codes as it says.
        let status = unsafe {
            (self.encode)(
                text.as_ptr(),
                USER_AND_KERNEL,
                OS_NONE,
                (&raw mut argument).cast(),
            )
        };
        (status == 0).then(|| Theirs {
            code: codes[0] & !CONTROL_BITS,
            extra: (argument.count > 1 && event.is_core()).then_some(codes[1]),
        })
    }
}

/// Its name of the PMU.
fn pmu_of(uarch: &str, pmu: &str) -> Option<String> {
    let (core, uncore) = match uarch {
        "snb" => ("snb", ""),
        "snbep" => ("snb_ep", "snbep_unc"),
        "ivb" => ("ivb", ""),
        "ivt" => ("ivb_ep", "ivbep_unc"),
        "hsw" => ("hsw", ""),
        "hsx" => ("hsw_ep", "hswep_unc"),
        "bdw" => ("bdw", ""),
        "bdx" => ("bdw_ep", "bdx_unc"),
        "skl" => ("skl", ""),
        "skx" => ("skx", "skx_unc"),
        "clx" => ("clx", "skx_unc"),
        "icl" => ("icl", ""),
        "icx" => ("icx", "icx_unc"),
        "spr" => ("spr", "spr_unc"),
        "emr" => ("emr", "emr_unc"),
        "gnr" => ("gnr", ""),
        "adl-p" => ("adl_glc", ""),
        "adl-e" => ("adl_grt", ""),
        "knl" => ("knl", "knl_unc"),
        "glm" => ("glm", ""),
        "tnt" => ("tmt", ""),
        "zen1" => ("amd64_fam17h_zen1", ""),
        "zen2" => ("amd64_fam17h_zen2", ""),
        "zen3" => ("amd64_fam19h_zen3", ""),
        "zen4" => ("amd64_fam19h_zen4", ""),
        _ => return None,
    };
    if pmu == "cpu" {
        return Some(core.to_owned());
    }
    let part = pmu.strip_prefix("uncore_")?.strip_suffix("_*")?;
    (!uncore.is_empty()).then(|| format!("{uncore}_{part}0"))
}

/// Why libpfm4 is not to be believed about an event.
pub fn fault(uarch: &Uarch, name: &str) -> Option<&'static str> {
    match (uarch.id.as_str(), name) {
        ("snb" | "snbep", "BR_INST_RETIRED.ALL_BRANCHES" | "BR_MISP_RETIRED.ALL_BRANCHES") => {
            Some("it has the variant for sampling, which counts the same")
        }
        ("icl" | "icx" | "spr", "INST_RETIRED.ANY")
        | ("adl-p" | "spr", "CPU_CLK_UNHALTED.THREAD") => {
            Some("it has a code that only the fixed counter takes")
        }
        _ => None,
    }
}
