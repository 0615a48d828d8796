"""Stand-in for the module `pbs` that pbs_mom gives its hooks: the names that pbs-hook.py uses, with an
event from the environment. It replaces no other part of PBS."""

import os
import sys

EXECJOB_BEGIN, EXECJOB_END, EXECJOB_ABORT = 0x100, 0x400, 0x20000
LOG_WARNING, LOG_DEBUG = 4, 7

pbs_conf = {"PBS_EXEC": os.environ["TEST_PBS_EXEC"]}
hook_config_filename = os.environ["TEST_PBS_CONFIG"]


class _Job:
    id = os.environ["TEST_PBS_JOB"]


class _Event:
    type = globals()[os.environ["TEST_PBS_EVENT"]]
    job = _Job()

    def accept(self):
        print("accepted")
        sys.exit(0)


def event():
    return _Event()


def logmsg(level, message):
    print("log", level, message)
