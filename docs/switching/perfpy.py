"""A training script of a user of perf.py with MLflow. `run()` is in place of the collector's `start()` and
`finalize()`, and `export()` in place of its reports: `perfpy.py NODE…` plays several nodes."""

import sys

import mlflow
import profiler

nodes = sys.argv[1:]


def train():
    mlflow.log_metric("loss", min(sum(range(1_000_000)) / 1e12 for _ in range(20)))


with mlflow.start_run() as active:
    for node in nodes:
        with profiler.run("100ms", run_id=active.info.run_id, hostname=node) as p:
            train()
    p.export("mlflow", mlflow_run=active.info.run_id)
    print(active.info.run_id)
