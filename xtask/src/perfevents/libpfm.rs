//! Encodings of libpfm4, from the library itself.

use std::{
    ffi::{CStr, CString, OsStr, c_char, c_int, c_void},
    mem::transmute,
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use perfevents::{Event, Uarch, WORDS};

/// File name of the library.
pub const NAME: &str = "libpfm.so.4";
/// `PFM_OS_NONE`: codes as the processor takes them.
const OS_NONE: c_int = 0;
/// `PFM_PLM0 | PFM_PLM3`.
const USER_AND_KERNEL: c_int = 1 | 8;
/// Bits of an x86 code that do not select the event: privilege levels, interrupt, enable.
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

/// The library, never unloaded.
pub struct Libpfm {
    encode: Encode,
}

impl Libpfm {
    /// Loads the library, with the events of all processors enabled.
    pub fn open(path: &Path) -> Result<Self, String> {
        let path =
            CString::new(OsStr::as_bytes(path.as_os_str())).map_err(|error| error.to_string())?;
        // SAFETY: the library's constructors have no side effects; no other thread runs yet.
        let library = unsafe {
            libc::setenv(c"LIBPFM_ENCODE_INACTIVE".as_ptr(), c"1".as_ptr(), 1);
            libc::dlopen(path.as_ptr(), libc::RTLD_NOW)
        };
        if library.is_null() {
            return Err(format!("{} cannot be loaded", path.to_string_lossy()));
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library is loaded.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            if symbol.is_null() {
                return Err(format!("{} not found in libpfm4", name.to_string_lossy()));
            }
            Ok(symbol)
        };
        // SAFETY: declared like this in perfmon/pfmlib.h.
        let initialize =
            unsafe { transmute::<*mut c_void, Initialize>(symbol(c"pfm_initialize")?) };
        // SAFETY: declared like this in perfmon/pfmlib.h.
        let encode =
            unsafe { transmute::<*mut c_void, Encode>(symbol(c"pfm_get_os_event_encoding")?) };
        // SAFETY: called once, before any other function of the library.
        let status = unsafe { initialize() };
        if status != 0 {
            return Err(format!("pfm_initialize failed ({status})"));
        }
        Ok(Self { encode })
    }

    /// libpfm4's words for the event, by the name in `theirs` or by the vendor's. `None` if libpfm4
    /// does not know the event or the processor.
    pub fn words(
        &self,
        uarch: &Uarch,
        name: &str,
        event: &Event,
        theirs: Option<&str>,
    ) -> Option<[u64; WORDS]> {
        // libpfm4 has energy events for the running machine only.
        if event.pmu == "power" {
            return None;
        }
        let name = theirs.map_or_else(|| name.replacen('.', ":", 1), str::to_owned);
        let pmu = pmu_of(&uarch.id, &event.pmu)?;
        let text = CString::new(format!("{pmu}::{name}")).ok()?;
        let mut codes = [0_u64; 8];
        let mut argument = EncodeArg {
            codes: codes.as_mut_ptr(),
            name: std::ptr::null_mut(),
            size: size_of::<EncodeArg>(),
            count: 8,
            index: 0,
        };
        // SAFETY: `OS_NONE` expects this argument, and `codes` has room for `count` codes.
        let status = unsafe {
            (self.encode)(
                text.as_ptr(),
                USER_AND_KERNEL,
                OS_NONE,
                (&raw mut argument).cast(),
            )
        };
        // The second code is the value of the off-core response register, if the event has one.
        let extra = if argument.count > 1 && event.is_core() {
            codes[1]
        } else {
            0
        };
        (status == 0).then_some([codes[0] & !CONTROL_BITS, extra, 0, 0])
    }
}

/// libpfm4's name of the PMU.
fn pmu_of(uarch: &str, pmu: &str) -> Option<String> {
    let (core, uncore) = match uarch {
        "nhm" => ("nhm", ""),
        "wsmep" | "wsmex" => ("wsm_dp", ""),
        "snb" => ("snb", ""),
        "snbep" => ("snb_ep", "snbep_unc"),
        "ivb" => ("ivb", ""),
        "ivt" => ("ivb_ep", "ivbep_unc"),
        "hsw" => ("hsw", ""),
        "hsx" => ("hsw_ep", "hswep_unc"),
        "bdw" => ("bdw", ""),
        "bdwde" | "bdx" => ("bdw_ep", "bdx_unc"),
        "skl" => ("skl", ""),
        "skx" => ("skx", "skx_unc"),
        "clx" => ("clx", "skx_unc"),
        "icl" => ("icl", ""),
        "icx" => ("icx", "icx_unc"),
        "spr" => ("spr", "spr_unc"),
        "emr" => ("emr", "spr_unc"),
        "gnr" => ("gnr", "gnr_unc"),
        "adl-p" => ("adl_glc", ""),
        "adl-e" => ("adl_grt", ""),
        "knl" => ("knl", "knl_unc"),
        "glm" => ("glm", ""),
        "tnt" => ("tmt", ""),
        "zen1" => ("amd64_fam17h_zen1", ""),
        "zen2" => ("amd64_fam17h_zen2", ""),
        "zen3" => ("amd64_fam19h_zen3", ""),
        "zen4" => ("amd64_fam19h_zen4", ""),
        "zen5" => ("amd64_fam1ah_zen5", ""),
        _ => return None,
    };
    match pmu {
        "cpu" => return Some(core.to_owned()),
        "amd_l3" => return Some(format!("{core}_l3")),
        _ => {}
    }
    let part = pmu.strip_prefix("uncore_")?.strip_suffix("_*")?;
    (!uncore.is_empty()).then(|| format!("{uncore}_{part}0"))
}

/// Why libpfm4's encoding of an event is wrong, or differs.
pub fn fault(uarch: &Uarch, name: &str) -> Option<&'static str> {
    match (uarch.id.as_str(), name) {
        ("snb" | "snbep", "BR_INST_RETIRED.ALL_BRANCHES" | "BR_MISP_RETIRED.ALL_BRANCHES") => {
            Some("the variant for sampling, which counts the same")
        }
        (
            "adl-e" | "adl-p" | "emr" | "gnr" | "icl" | "icx" | "spr",
            "INST_RETIRED.ANY" | "CPU_CLK_UNHALTED.THREAD" | "CPU_CLK_UNHALTED.CORE",
        ) => Some("a code that only the fixed counter accepts"),
        (
            "zen5",
            "l2_pf_miss_l2_l3.l2_hwpf"
            | "l2_fill_rsp_src.dram_io_near"
            | "l2_fill_rsp_src.dram_io_far",
        ) => Some("the codes of these events are swapped"),
        ("power9" | "power10", "PM_RUN_CYC" | "PM_RUN_INST_CMPL") => {
            Some("the code of a programmable counter; ours is that of the fixed counter")
        }
        ("power10", "PM_DATA_FROM_DMEM" | "PM_DATA_FROM_LMEM" | "PM_DATA_FROM_RMEM") => {
            Some("restricted to the first counter; our code leaves the choice to the kernel")
        }
        ("power10", "PM_DATA_FROM_L2MISS") => {
            Some("the code of an equivalent event for any counter, restricted to the first")
        }
        _ => None,
    }
}
