"""Hook of OpenPBS and PBS Professional: profiles each job on each of its nodes, into one run per job.

    qmgr -c 'create hook profiler event="execjob_begin,execjob_end,execjob_abort"'
    qmgr -c 'import hook profiler application/x-python default pbs-hook.py'       (this file)
    qmgr -c 'import hook profiler application/x-config default profiler.json'     (optional)

profiler.json changes the settings below, for example {"out": "/scratch/profiles"}.

It needs a PBS with Python 3. pbs_mom runs it as root. It never prevents a job from starting: every event
is accepted, and failures are reported in the log of pbs_mom. It is not needed on nodes that run
profiler.service.
"""

import glob
import json
import os
import re
import signal
import subprocess
import time

import pbs

SETTINGS = {
    "profiler": "/usr/local/bin/profiler",
    "out": "/var/lib/profiler",
    "run": "/run/profiler-jobs",
    # More arguments of `profiler run`.
    "options": [],
    # Time for the last sample and the last files; the alarm of a hook is 30 s. After it, `profiler
    # recover` can do the rest.
    "end_s": 20,
}


def settings():
    """The settings above with those of the hook's configuration file."""
    values = dict(SETTINGS)
    if getattr(pbs, "hook_config_filename", None):
        with open(pbs.hook_config_filename) as file:
            values.update(json.load(file))
    return values


def begin(job, values):
    """Starts the profiler of a job in the background."""
    for directory in (values["out"], values["run"]):
        os.makedirs(directory, mode=0o750, exist_ok=True)
    # For qstat.
    commands = os.path.join(pbs.pbs_conf.get("PBS_EXEC", "/opt/pbs"), "bin")
    path = os.environ.get("PATH", "/usr/bin:/bin") + os.pathsep + commands
    log = os.path.join(values["run"], job + ".{host}.log")
    command = [values["profiler"], "run", "--job", job, "--scheduler", "pbs", "--once", "--quiet"]
    command += ["--out", values["out"], "--log", log] + values["options"]
    # In a session of its own: pbs_mom kills that of the hook after its alarm.
    profiler = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, PATH=path),
        start_new_session=True,
    )
    with open(os.path.join(values["run"], job + ".pid"), "w") as file:
        file.write("{}\n".format(profiler.pid))


def is_ours(pid, job, profiler):
    """Whether the pid is still that of the job's profiler: it can belong to another process."""
    try:
        with open("/proc/{}/cmdline".format(pid), "rb") as file:
            words = file.read().decode(errors="replace").split("\0")
        program = os.readlink("/proc/{}/exe".format(pid))
    except OSError:
        return False
    return program == os.path.realpath(profiler) and ("--job", job) in zip(words, words[1:])


def end(job, values):
    """Ends the profiler of a job, if it is still running, and passes on its messages."""
    name = os.path.join(values["run"], job)
    try:
        with open(name + ".pid") as file:
            pid = int(file.read())
    except FileNotFoundError:
        return
    if is_ours(pid, job, values["profiler"]):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + values["end_s"]
    while is_ours(pid, job, values["profiler"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for log in glob.glob(glob.escape(name) + ".*.log"):
        with open(log, errors="replace") as file:
            for line in file:
                report(job, pbs.LOG_DEBUG, line.strip())
        os.remove(log)
    os.remove(name + ".pid")


def report(job, level, message):
    """Writes a line to the log of pbs_mom."""
    pbs.logmsg(level, "profiler: {}: {}".format(job, message))


event = pbs.event()
job_id = event.job.id
try:
    # A part of file names.
    if not re.match(r"[0-9][\w.\[\]-]*$", job_id):
        raise ValueError("unexpected job id")
    if event.type == pbs.EXECJOB_BEGIN:
        begin(job_id, settings())
    # Older versions have no execjob_abort.
    elif event.type in (pbs.EXECJOB_END, getattr(pbs, "EXECJOB_ABORT", None)):
        end(job_id, settings())
except Exception as error:
    report(job_id, pbs.LOG_WARNING, error)
# Ends the hook by SystemExit.
event.accept()
