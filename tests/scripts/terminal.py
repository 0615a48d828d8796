"""Runs COMMAND, a profiler of record_signals.py that writes FILE, as the job of a shell in a terminal of its
own. SCENARIO is one of:

- control: the job is stopped with Ctrl+Z, continues with `fg` and is interrupted with Ctrl+C.
- background: the job runs in the background of a terminal that stops such jobs if they write to it, until
  the end of the command.
- close: the terminal is closed.

Prints as JSON what the terminal showed, and the states of the processes of the job while it was stopped:
{command name: state}.
"""

import json
import os
import pty
import select
import shlex
import signal
import sys
import time

SCENARIO, FILE, *COMMAND = sys.argv[1:]
END = time.monotonic() + 250
shell, terminal = pty.fork()
if shell == 0:
    os.environ["PS1"] = "prompt> "
    os.execvp("bash", ["bash", "--norc", "--noprofile", "-i"])
shown = ""


def wait_until(what, condition):
    global shown
    while not condition():
        if time.monotonic() > END:
            sys.exit(f"{what}: not in time; the terminal shows:\n{shown}")
        if select.select([terminal], [], [], 0.01)[0]:
            shown += os.read(terminal, 65536).decode(errors="replace")


def content():
    try:
        with open(FILE) as file:
            return file.read().split("\n")
    except FileNotFoundError:
        return []


def processes():
    """Pid, name and state of each process below the shell."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as file:
                name, fields = file.read().split(" (", 1)[1].rsplit(") ", 1)
        except OSError:
            continue
        state, _, group, session = fields.split()[:4]
        # The shell leads the session, and each job has a group.
        if int(session) == shell and int(group) != shell:
            yield pid, name, state


def states():
    """States of the processes, by name."""
    return {name: state for _, name, state in processes()}


def has_taken(number):
    """Whether the profiler has taken this signal, of which the kernel would not keep another one until then."""
    [pid] = [pid for pid, name, _ in processes() if name == "profiler"]
    with open(f"/proc/{pid}/status") as file:
        pending = next(line for line in file if line.startswith("ShdPnd:"))
    return not int(pending.split()[1], 16) >> (number - 1) & 1


def control():
    start(f"{shlex.join(COMMAND)}; echo code=$?")
    os.write(terminal, b"\x1a")
    wait_until("the shell", lambda: "Stopped" in shown)
    wait_until("both stop", lambda: list(map(states().get, ("profiler", "python"))) == ["T", "T"])
    stopped = states()
    # Several samples are due meanwhile.
    time.sleep(0.5)
    os.write(terminal, b"fg\n")
    wait_until("all continue", lambda: "SIGCONT" in content() and "T" not in states().values())
    os.write(terminal, b"\x03")
    wait_until("the interrupt", lambda: "SIGINT" in content() and has_taken(signal.SIGINT))
    os.write(terminal, b"\x03")
    wait_until("the end", lambda: "profiler " not in " ".join(states()) and "dataset " in shown)
    return {"stopped": stopped, "shown": shown}


def background():
    start(f"stty tostop; {shlex.join(COMMAND)} &")
    wait_until("its message", lambda: "profiling " in shown)
    os.write(terminal, b"kill -TERM $!\n")
    wait_until("the end", lambda: "dataset " in shown)
    return {"shown": shown}


def close():
    start(shlex.join(COMMAND))
    return {"shown": shown}


def start(line):
    wait_until("a prompt", lambda: "prompt> " in shown)
    os.write(terminal, f"{line}\n".encode())
    wait_until("the command", lambda: any(line.startswith("blocked") for line in content()))


print(json.dumps({"control": control, "background": background, "close": close}[SCENARIO]()))
os.close(terminal)
os.waitpid(shell, 0)
