"""Prints psutil's counters since boot, as JSON: times of CPUs, disks, interfaces, switches."""

import json

import psutil

print(
    json.dumps(
        {
            "times": psutil.cpu_times()._asdict(),
            "cpus": [times._asdict() for times in psutil.cpu_times(percpu=True)],
            "disks": {
                name: counts._asdict()
                for name, counts in psutil.disk_io_counters(perdisk=True).items()
            },
            "nics": {
                name: counts._asdict()
                for name, counts in psutil.net_io_counters(pernic=True).items()
            },
            "ctx_switches": psutil.cpu_stats().ctx_switches,
            "sin": psutil.swap_memory().sin,
        }
    )
)
