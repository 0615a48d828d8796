//! Times as other programs write them.

use std::mem::MaybeUninit;

/// The parts of a time that formats use.
struct Parts {
    tm: libc::tm,
    milliseconds: i64,
}

/// `ts` is in µs since 1970-01-01 UTC; `convert` is gmtime_r(3) or localtime_r(3).
fn parts(
    ts: i64,
    convert: unsafe extern "C" fn(*const i64, *mut libc::tm) -> *mut libc::tm,
) -> Option<Parts> {
    let seconds: i64 = ts.div_euclid(1_000_000);
    let mut tm = MaybeUninit::uninit();
    // SAFETY: both pointers are valid, and the result is written unless null is returned.
    let tm = unsafe {
        let result = convert(&raw const seconds, tm.as_mut_ptr());
        (!result.is_null()).then(|| tm.assume_init())
    };
    Some(Parts {
        tm: tm?,
        milliseconds: ts.rem_euclid(1_000_000) / 1000,
    })
}

/// `2026/01/31 12:00:00.123` in the time zone of the system, as `nvidia-smi` prints it.
pub fn local(ts: i64) -> String {
    let Some(Parts { tm, milliseconds }) = parts(ts, libc::localtime_r) else {
        return String::new();
    };
    format!(
        "{:04}/{:02}/{:02} {:02}:{:02}:{:02}.{milliseconds:03}",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec,
    )
}

/// `2026-01-31T12:00:00.123+00:00`, as Python writes ISO 8601.
pub fn iso(ts: i64) -> String {
    let Some(Parts { tm, milliseconds }) = parts(ts, libc::gmtime_r) else {
        return String::new();
    };
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{milliseconds:03}+00:00",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_milliseconds() {
        assert_eq!(iso(1_767_225_599_999_999), "2025-12-31T23:59:59.999+00:00");
        assert_eq!(iso(-1), "1969-12-31T23:59:59.999+00:00");
        let local = local(1_767_225_599_042_000);
        assert!(local.len() == 23 && local.ends_with("59.042"), "{local}");
    }
}
