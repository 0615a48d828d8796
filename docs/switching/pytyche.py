"""A monitor of a JAX job, as a user of pytyche has it: `profiler.run()` is in place of `HWMonitor`, and
`phase`, `event` and `gauge` are in place of `RunLog` and `probe_jax_peak_memory_mb()`."""

import sys
import time

import profiler

with profiler.run("100ms", out=sys.argv[1], run_id="fit") as p:
    profiler.event("start", batch=32)
    for epoch in range(2):
        begin = time.perf_counter()
        time.sleep(0.2)
        profiler.phase("fit", time.perf_counter() - begin, epoch=epoch)
    # With JAX: profiler.jax.peak_memory()
    profiler.gauge("jax_peak_bytes", 1 << 30, "bytes")
p.export("pytyche", "files")
