"""Prints what psutil knows of a process, as JSON.

Usage: psutil_process.py PID
"""

import json
import sys

import psutil

process = psutil.Process(int(sys.argv[1]))
times = process.cpu_times()
print(
    json.dumps(
        {
            "children_user": times.children_user,
            "children_system": times.children_system,
            "open_files": len(process.open_files()),
            "sockets": len(process.net_connections(kind="all")),
            "argv": process.cmdline(),
        }
    )
)
