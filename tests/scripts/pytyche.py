"""Summarizes the files of pytyche as its parser does, and prints the summary as JSON:
pytyche.py DIRECTORY"""

import json
import sys
from pathlib import Path

directory = Path(sys.argv[1])


def lines(name, separator, least):
    for line in (directory / name).read_text().splitlines():
        fields = line.strip().split(separator)
        if len(fields) >= least and not line.startswith("#"):
            yield [field.strip() for field in fields]


def numbers(rows, columns):
    """Rows of which all these columns are numbers."""
    for row in rows:
        try:
            yield [float(row[column]) for column in columns]
        except ValueError:
            pass


def mean(values):
    return sum(values) / len(values) if values else None


gpus = list(numbers(lines("hw_metrics.csv", ",", 9), [1, 3, 5]))
memory = [value for [value] in numbers(lines("hw_dmon.csv", None, 4), [2])]
cpus = list(numbers(list(lines("cpu_metrics.csv", ",", 3))[1:], [1, 2]))
summary = {
    "gpu_util_mean_pct": mean([row[0] for row in gpus]),
    "gpu_util_max_pct": max((row[0] for row in gpus), default=None),
    "peak_vram_mb": max((row[1] for row in gpus), default=None),
    "power_watts_mean": mean([row[2] for row in gpus]),
    "power_watts_max": max((row[2] for row in gpus), default=None),
    "mem_util_mean_pct": mean(memory),
    "mem_util_max_pct": max(memory, default=None),
    "cpu_usr_mean_pct": mean([row[0] for row in cpus]),
    "cpu_idle_mean_pct": mean([row[1] for row in cpus]),
}
print(json.dumps(summary))
