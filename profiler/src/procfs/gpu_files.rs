//! Device files of GPUs, found by a helper process, which may only make system calls.

use std::ffi::CStr;

/// Major number of `/dev/nvidiaN`.
pub(crate) const NVIDIA: u32 = 195;
/// Major number of `/dev/dri/renderDN`.
pub(crate) const DRM: u32 = 226;
/// Device files of a driver that are looked for.
const GPUS_MAX: u32 = 64;

/// GPUs in the `/dev` of a root directory. No link is followed and no device opened. Returns the
/// length of what was found, and an error number.
///
/// # Safety
///
/// NUL ends the path.
pub(super) unsafe fn find_gpus(root: &[u8], into: &mut [u8]) -> (u32, i32) {
    // SAFETY: system calls with strings that NUL ends.
    unsafe {
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let below = |at, name: &CStr| libc::openat(at, name.as_ptr(), flags | libc::O_NOFOLLOW);
        let root = libc::open(root.as_ptr().cast(), flags);
        let dev = below(root, c"dev");
        let errno = *libc::__errno_location();
        libc::close(root);
        if dev < 0 {
            return (0, errno);
        }
        let dri = below(dev, c"dri");
        let mut length = 0u32;
        for (directory, prefix, major, first) in [
            (dev, &b"nvidia"[..], NVIDIA, 0),
            (dri, b"renderD", DRM, 128),
        ] {
            for minor in first..first + GPUS_MAX {
                let name = numbered(prefix, minor);
                let mut stat: libc::stat = std::mem::zeroed();
                let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
                let found = libc::fstatat(directory, name.as_ptr().cast(), &raw mut stat, flags);
                let is_gpu = found == 0
                    && stat.st_mode & libc::S_IFMT == libc::S_IFCHR
                    && stat.st_rdev == libc::makedev(major, minor);
                let at = length as usize;
                if is_gpu && let Some(pair) = into.get_mut(at..at + 8) {
                    pair[..4].copy_from_slice(&major.to_ne_bytes());
                    pair[4..].copy_from_slice(&minor.to_ne_bytes());
                    length += 8;
                }
            }
        }
        libc::close(dri);
        libc::close(dev);
        (length, 0)
    }
}

/// A name with a number below 1000, which NUL ends.
fn numbered(prefix: &[u8], number: u32) -> [u8; 16] {
    let mut name = [0; 16];
    name[..prefix.len()].copy_from_slice(prefix);
    let mut at = prefix.len();
    for unit in [100, 10, 1] {
        if number >= unit || unit == 1 {
            name[at] = b'0' + (number / unit % 10).to_le_bytes()[0];
            at += 1;
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_leading_zeros() {
        for (number, name) in [
            (0, "x0"),
            (7, "x7"),
            (10, "x10"),
            (63, "x63"),
            (130, "x130"),
        ] {
            let numbered = numbered(b"x", number);
            let text = CStr::from_bytes_until_nul(&numbered).expect("an end");
            assert_eq!(text.to_str(), Ok(name));
        }
    }
}
