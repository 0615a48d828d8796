"""Ray: its workers are descendants of the program that starts it."""

from __future__ import annotations

import json
import os

from conftest import Run, losses, rows

PROGRAM = """
import os
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import profiler, ray

@ray.remote
@profiler.task
def square(x):
    return x * x

@ray.remote
def call(function, *args):
    return function(*args)

@profiler.task
def burn(seconds):
    import time
    start = time.process_time()
    while time.process_time() < start + seconds:
        pass
    return os.getpid(), time.process_time() - start

@ray.remote
class Counter:
    @profiler.task
    def add(self, x):
        return x + 1

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
with profiler.region("search"):
    assert ray.get([square.remote(x) for x in range(4)]) == [0, 1, 4, 9]
    ray.get([call.remote(profiler.propagate(burn), 0.2) for _ in range(3)])
    assert ray.get(Counter.remote().add.remote(1)) == 2
ray.shutdown()
"""


def test_tasks_and_actors(run: Run) -> None:
    reader = run(PROGRAM)
    (search,) = rows(reader, name="search")
    squares, burns = rows(reader, name="square"), rows(reader, name="burn")
    assert sorted(json.loads(row["generated"]) for row in squares) == [0, 1, 4, 9]
    assert len(rows(reader, name="add")) == 1
    # Only `propagate` carries the region into the workers.
    assert {row["parent_region_id"] for row in squares} == {None}
    assert [row["parent_region_id"] for row in burns] == [search["region_id"]] * 3
    processes = {row["pid"]: row for row in rows(reader, "process")}
    assert search["pid"] not in {row["pid"] for row in squares + burns}
    assert {row["pid"] for row in burns} <= set(processes)
    stolen = sum(row["steal_ns"] or 0 for row in rows(reader, "system"))
    for row in burns:
        pid, seconds = json.loads(row["generated"])
        (usage,) = rows(reader, "region_usage", region_id=row["region_id"])
        # Between two readings near its start and end; the machine can run several threads of a worker.
        before, after = (os.cpu_count() * max(usage[f"{end}_offset_ns"], 0) for end in ("start", "end"))
        assert pid == row["pid"]
        assert seconds * 1e9 - before - stolen <= usage["oncpu_ns"] <= seconds * 1e9 + after + 5e6
    assert not losses(reader)
