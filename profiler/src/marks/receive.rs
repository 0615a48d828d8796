//! Receives one datagram with the credentials of its sender.
//!
//! This calls recvmsg(2) directly, because the wrappers treat truncated control messages as an
//! error. The buffer for control messages is too small for file descriptors, so that a sender
//! cannot pass any: closing one can hang in its file system.

use std::{
    mem::MaybeUninit,
    os::fd::{AsRawFd as _, OwnedFd},
};

/// Bytes of the control messages: a time and credentials, and nothing else.
const CONTROL: usize = space(size_of::<libc::timespec>()) + space(size_of::<libc::ucred>());

/// Bytes of a control message: `CMSG_SPACE` of a 64-bit kernel.
const fn space(length: usize) -> usize {
    size_of::<libc::cmsghdr>() + length.next_multiple_of(size_of::<usize>())
}

/// Kernel metadata of a datagram.
#[derive(Clone, Copy, Debug, Default)]
pub struct Envelope {
    /// Bytes received.
    pub bytes: usize,
    /// Whether the datagram was longer than the buffer.
    pub truncated: bool,
    /// Pid of the sender in the profiler's pid namespace (0 if it is in another), and its uid.
    pub sender: Option<(u32, u32)>,
    /// Wall clock when the datagram was sent, ns since 1970.
    pub sent: Option<i64>,
}

/// The size of the control messages in the type of the C library.
fn control_length<T: TryFrom<usize>>() -> Option<T> {
    T::try_from(CONTROL).ok()
}

/// Receives one datagram, without waiting for one.
pub fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> Option<Envelope> {
    // `u64` for the alignment of the message headers.
    let mut control = [0_u64; CONTROL / 8];
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all zeros is a valid, empty header.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control_length()?;
    // SAFETY: the header points to `buffer` and `control`, with their lengths.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    let mut envelope = Envelope {
        bytes: usize::try_from(length).ok()?,
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        ..Envelope::default()
    };
    // SAFETY: the kernel has written msg_controllen bytes of complete messages.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !message.is_null() {
        // SAFETY: not null, so it points to an aligned message in the buffer.
        let (level, kind, data) = unsafe {
            (
                (*message).cmsg_level,
                (*message).cmsg_type,
                libc::CMSG_DATA(message),
            )
        };
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                // SAFETY: messages of this type contain a ucred, possibly unaligned.
                let sender: libc::ucred = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                envelope.sender = Some((sender.pid.cast_unsigned(), sender.uid));
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                // SAFETY: messages of this type contain a timespec, possibly unaligned.
                let time: libc::timespec =
                    unsafe { data.cast::<libc::timespec>().read_unaligned() };
                envelope.sent = Some(time.tv_sec * 1_000_000_000 + time.tv_nsec);
            }
            _ => {}
        }
        // SAFETY: as above.
        message = unsafe { libc::CMSG_NXTHDR(&raw const header, message) };
    }
    Some(envelope)
}
