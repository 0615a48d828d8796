"""The cost of a mark, and of none. The figures are printed: pytest -s."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import timeit
from pathlib import Path

from conftest import BINARY

import profiler

# Least of many short measurements: the rest is what else the machine does.
REPEAT, NUMBER = 200, 2_000


def cost(statement: str, **names: object) -> float:
    """Microseconds per execution."""
    return min(timeit.repeat(statement, globals=names, number=NUMBER, repeat=REPEAT)) / NUMBER * 1e6


def test_cost_without_profiler() -> None:
    def function(x: int) -> None:
        pass

    assert not profiler.active()
    call = cost("f(1)", f=function)
    task = cost("f(1)", f=profiler.task(function)) - call
    decorated = cost("f(1)", f=profiler.region("r")(function)) - call
    region = cost("with region('r'): pass", region=profiler.region)
    event = cost("event('e')", event=profiler.event)
    print(f"\nµs without profiler: task {task:.3f}, decorator {decorated:.3f}, region {region:.3f}, event {event:.3f}")
    # In calls of an empty function, which take as long as the machine and this Python make them.
    assert max(task, decorated, region, event) <= 15 * call


def test_cost_of_a_mark(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import json, os, socket, time, profiler
            if os.geteuid() == 0:
                # As for the figures of docs/regions.md: with priority over other work.
                os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
            @profiler.task
            def function(x, y=2): return x
            def region():
                with profiler.region("r"): pass
            bare = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            bare.connect(os.environ["PROFILER_SOCKET"])
            calls = {
                "datagram": (lambda: bare.send(b'{"op":"event","name":"e"}'), 1),
                "text": (lambda: json.dumps({"op": "event", "name": "e", "attributes": {"x": 1, "y": 2}}), 1),
                "task": (lambda: function(1), 2),
                "region": (region, 2),
                "event": (lambda: profiler.event("e"), 1),
                "gauge": (lambda: profiler.gauge("g", 1.5), 1),
            }
            assert profiler.active()
            times = {name: [] for name in calls}
            for _ in range(400):
                for name, (call, marks) in calls.items():
                    # Marks that come too fast are not stored.
                    end = time.perf_counter_ns() + 1_000_000
                    while time.perf_counter_ns() < end: pass
                    start = time.perf_counter_ns()
                    call()
                    times[name].append((time.perf_counter_ns() - start) / marks / 1000)
            # The least: the rest is what else the machine does.
            print(json.dumps({name: min(values) for name, values in times.items()}))
            """
        )
    )
    command = [str(BINARY), "run", "-q", "--out", str(tmp_path), "--", sys.executable, str(script)]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    costs = json.loads(output)
    print("\nµs per mark: " + ", ".join(f"{name} {value:.2f}" for name, value in costs.items()))
    # In the work of the kernel and of Python, done in turn with the marks: other load changes both, but
    # not by the same factor.
    datagram, text = costs.pop("datagram"), costs.pop("text")
    assert max(costs.values()) <= datagram + 1.5 * text
