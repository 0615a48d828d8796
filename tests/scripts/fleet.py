"""Runs the queries of profiler.fleet with DuckDB and on a Spark cluster of several processes, a master
and two workers, and prints as JSON where their results differ from those in EXPECTED/QUERY.parquet.
Usage: fleet.py DATASET LOGS EXPECTED"""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pyspark

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python/src"))

from profiler import fleet
from profiler.fleet._queries import ANSWERS

SPARK = Path(pyspark.__file__).parent


class Cluster:
    """A standalone cluster with two workers of one core."""

    def __init__(self, directory):
        self.processes = []
        self.logs = directory
        self.url = self.start("master.Master", "--port", "0", "--webui-port", "0", until="Starting Spark master at ")
        for worker in range(2):
            options = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", f"{directory}/{worker}"]
            self.start("worker.Worker", *options, self.url, until="Successfully registered with master")

    def start(self, program, *options, until):
        """Returns the first word after a text in the log."""
        log = Path(self.logs) / f"{len(self.processes)}.log"
        command = [SPARK / "bin/spark-class", f"org.apache.spark.deploy.{program}", "--host", "127.0.0.1", *options]
        environment = {**os.environ, "SPARK_HOME": str(SPARK)}
        with log.open("w") as file:
            self.processes.append(subprocess.Popen(command, stdout=file, stderr=file, env=environment))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            _, found, rest = log.read_text().partition(until)
            if found:
                return (rest.split() or [""])[0]
            time.sleep(0.1)
        raise RuntimeError(log.read_text())

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(30)


def equal(mine, theirs):
    if isinstance(mine, float) and isinstance(theirs, float):
        return math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-9)
    return mine == theirs and type(mine) is type(theirs)


def differences(name, mine, theirs):
    if mine.schema.names != theirs.schema.names or mine.num_rows != theirs.num_rows:
        return [f"{name}: {mine.num_rows} rows of {mine.schema.names}, {theirs.num_rows} of {theirs.schema.names}"]
    found = []
    for number, (a, b) in enumerate(zip(mine.to_pylist(), theirs.to_pylist())):
        found += [f"{name} row {number} {key}: {a[key]} {b[key]}" for key in a if not equal(a[key], b[key])]
    return found[:10]


def main():
    path, logs, expected = sys.argv[1:]
    dataset = fleet.open_dataset(path)
    duckdb = fleet.run(fleet.connect("duckdb", dataset), ANSWERS)
    cluster = Cluster(logs)
    try:
        engine = fleet.connect("spark", dataset, cluster.url)
        spark = fleet.run(engine, ANSWERS)
        # The driver is one of these.
        executors = engine._session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
        engine.close()
    finally:
        cluster.stop()
    problems = []
    for name in ANSWERS:
        before = pyarrow.parquet.read_table(f"{expected}/{name}.parquet")
        problems += differences(f"duckdb {name}", before, duckdb[name])
        problems += differences(f"spark {name}", before, spark[name])
    files = dataset.files["usage"]
    print(
        json.dumps(
            {
                "problems": problems,
                "executors": executors,
                "rows": {name: duckdb[name].num_rows for name in ANSWERS},
                "slow_nodes": sorted(duckdb["slow_nodes"]["host"].to_pylist()),
                "parts": len(files.parts),
                "compacted": len(files.compacted),
                "notes": dataset.notes,
            }
        )
    )


main()
