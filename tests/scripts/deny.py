"""Executes a command for which a system call fails with EPERM: deny.py SYSCALL COMMAND ARGS...

SYSCALL:ENOSYS is another error.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
NUMBERS = {
    "bpf": {"x86_64": 321, "aarch64": 280, "ppc64le": 361, "riscv64": 280, "s390x": 351},
    "perf_event_open": {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "riscv64": 241, "s390x": 331},
    "statx": {"x86_64": 332, "aarch64": 291, "ppc64le": 383, "riscv64": 291, "s390x": 379},
}
CALL, _, ERROR = sys.argv[1].partition(":")
NUMBER = NUMBERS[CALL][platform.machine()]
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000 | getattr(errno, ERROR or "EPERM")

instructions = [
    (LOAD, 0, 0, 0),  # the system call's number
    (JUMP_IF_EQUAL, 0, 1, NUMBER),
    (RETURN, 0, 0, FAIL),
    (RETURN, 0, 0, ALLOW),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in instructions))
program = struct.pack("HxxxxxxP", len(instructions), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
zero = ctypes.c_ulong(0)
one = ctypes.c_ulong(1)
for arguments in [
    (PR_SET_NO_NEW_PRIVS, one, zero, zero, zero),
    (PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), program, zero, zero),
]:
    if libc.prctl(*arguments) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[2], sys.argv[2:])
