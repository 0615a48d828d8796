"""Prints psutil's counters of disks, interfaces and file systems as JSON: psutil_reading.py MOUNT..."""

import json
import sys

import psutil

disks = psutil.disk_io_counters(perdisk=True, nowrap=False)
interfaces = psutil.net_io_counters(pernic=True, nowrap=False)
usage = {path: psutil.disk_usage(path) for path in sys.argv[1:]}
print(
    json.dumps(
        {
            "disk": {name: reading._asdict() for name, reading in disks.items()},
            "netdev": {name: reading._asdict() for name, reading in interfaces.items()},
            "filesystem": {path: reading._asdict() for path, reading in usage.items()},
        }
    )
)
