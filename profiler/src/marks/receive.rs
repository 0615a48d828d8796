//! One datagram with what the kernel says of its sender.
//!
//! By hand: descriptors that are sent along must not arrive (closing one can hang, if a file system so wishes). They do not,
//! because there is no room for them, which the wrappers take for an error.

use std::{
    mem::MaybeUninit,
    os::fd::{AsRawFd as _, OwnedFd},
};

/// Bytes of the control messages that are wanted: a time and credentials, and nothing else.
const CONTROL: usize = space(size_of::<libc::timespec>()) + space(size_of::<libc::ucred>());

/// Bytes of a control message: `CMSG_SPACE` of a 64-bit kernel.
const fn space(length: usize) -> usize {
    size_of::<libc::cmsghdr>() + length.next_multiple_of(size_of::<usize>())
}

/// What the kernel says of a datagram.
#[derive(Clone, Copy, Debug, Default)]
pub struct Envelope {
    /// Its length, as far as it fitted.
    pub bytes: usize,
    /// Whether it was longer.
    pub truncated: bool,
    /// Sender's process id in our pid namespace, 0 if it has none, and its user.
    pub sender: Option<(u32, u32)>,
    /// Wall clock when it was sent, ns since 1970.
    pub sent: Option<i64>,
}

/// Receives one datagram if there is one.
pub fn receive(fd: &OwnedFd, buffer: &mut [u8]) -> Option<Envelope> {
    // Aligned for the headers in it.
    let mut control = [0_u64; CONTROL / 8];
    let mut part = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: all zero is a valid header: nothing is in it.
    let mut header: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = CONTROL;
    // SAFETY: the header's pointers are to memory that is borrowed or ours, of the lengths that it says.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    let mut envelope = Envelope {
        bytes: usize::try_from(length).ok()?,
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        ..Envelope::default()
    };
    // SAFETY: the kernel has written msg_controllen bytes of whole messages, which these functions walk through.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
    while !message.is_null() {
        // SAFETY: not null, so it is a message within the buffer, aligned as the buffer is.
        let (level, kind, data) = unsafe {
            (
                (*message).cmsg_level,
                (*message).cmsg_type,
                libc::CMSG_DATA(message),
            )
        };
        match (level, kind) {
            (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                // SAFETY: messages of this kind hold a ucred, perhaps not aligned.
                let sender: libc::ucred = unsafe { data.cast::<libc::ucred>().read_unaligned() };
                envelope.sender = Some((sender.pid.cast_unsigned(), sender.uid));
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                // SAFETY: messages of this kind hold a timespec, perhaps not aligned.
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
