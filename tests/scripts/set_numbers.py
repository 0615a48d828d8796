"""Gives a run other numbers: set_numbers.py RUN INSTRUCTIONS_PER_CYCLE MEMORY_BYTES_PER_SECOND CPU
RUNQUEUE BLOCKED. The last three are times of each process in parts of the time."""

import glob
import sys

import pyarrow as pa
import pyarrow.parquet as pq

run = sys.argv[1]
ipc, memory, cpu, runqueue, blocked = map(float, sys.argv[2:])


def replace(name, columns):
    for path in glob.glob(f"{run}/{name}/host=*/part-*.parquet"):
        table = pq.read_table(path, partitioning=None)
        intervals = table["interval_ns"].to_pylist()
        for column, value in columns.items():
            index = table.schema.get_field_index(column)
            field = table.schema.field(index)
            values = [value(interval) for interval in intervals]
            if pa.types.is_integer(field.type):
                values = [int(value) for value in values]
            table = table.set_column(index, field, pa.array(values, field.type))
        pq.write_table(table, path, compression="zstd")


replace(
    "timeline",
    {
        "target_cycles": lambda interval: 3.0 * interval,
        "target_instructions": lambda interval: 3.0 * interval * ipc,
        "node_mem_bw_bytes_per_s": lambda interval: memory,
        "target_cpu_percent": lambda interval: 100 * cpu,
        "target_runqueue_ns": lambda interval: runqueue * interval,
    },
)
# No other process.
replace(
    "cpu",
    {
        "user_ns": lambda interval: 0,
        "nice_ns": lambda interval: 0,
        "system_ns": lambda interval: 0,
    },
)
replace(
    "usage",
    {
        "user_ns": lambda interval: cpu * interval,
        "system_ns": lambda interval: 0,
    },
)
replace(
    "sched",
    {
        "runqueue_ns": lambda interval: runqueue * interval,
        "blocked_ns": lambda interval: blocked * interval,
        "sleep_ns": lambda interval: 0,
    },
)
print("{}")
