"""Gives a run hardware counters: set_counters.py RUN INSTRUCTIONS_PER_CYCLE MEMORY_BYTES_PER_SECOND."""

import glob
import sys

import pyarrow as pa
import pyarrow.parquet as pq

run, ipc, memory = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
for path in glob.glob(f"{run}/timeline/host=*/part-*.parquet"):
    table = pq.read_table(path, partitioning=None)
    cycles = [3.0 * interval for interval in table["interval_ns"].to_pylist()]
    columns = {
        "target_cycles": cycles,
        "target_instructions": [ipc * count for count in cycles],
        "node_mem_bw": [memory] * len(cycles),
    }
    for name, values in columns.items():
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(index), pa.array(values, pa.float64()))
    pq.write_table(table, path, compression="zstd")
print("{}")
