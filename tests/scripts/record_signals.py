"""Writes the name of each signal that arrives into FILE, a line each, until SIGTERM; exits with 9 then.

The first lines are its process and its parent, and the signals that were ignored and blocked at the start.
"""

import os
import signal
import sys

file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
# Not those of faults, children, closed pipes and those that stop; SIGKILL and SIGSTOP cannot be caught.
LEFT = {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGPIPE}
LEFT |= {signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
LEFT |= {signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGTRAP, signal.SIGABRT}
signals = set(signal.valid_signals()) - LEFT
# Python itself ignores SIGXFSZ.
signals -= {signal.SIGXFSZ}
ignored = {n for n in signals if signal.getsignal(n) == signal.SIG_IGN}
signals -= ignored
# Received one by one: a handler would be called once for two of them.
blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signals)


def write(text):
    os.write(file, text.encode() + b"\n")


def names(numbers):
    return " ".join(signal.Signals(n).name for n in sorted(numbers))


write(f"process {os.getpid()}")
write(f"parent {os.getppid()}")
write("ignored " + names(ignored))
write("blocked " + names(blocked))
# Signals that are ignored by default do not become pending otherwise.
for number in signals:
    signal.signal(number, lambda *_: None)
while True:
    number = signal.sigwait(signals)
    write(signal.Signals(number).name if number < signal.SIGRTMIN else f"RT{number}")
    if number == signal.SIGTERM:
        sys.exit(9)
