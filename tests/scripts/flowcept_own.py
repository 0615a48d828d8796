"""A program under Flowcept itself, which writes its records with telemetry: flowcept_own.py FILE"""

import json
import os
import sys
import time
from pathlib import Path

directory = Path(sys.argv[1]).parent
settings = directory / "settings.yaml"
settings.write_text(
    """
project: {debug: false, db_flush_mode: offline, dump_buffer: {enabled: true, path: %s, append_id_to_path: false, append_workflow_id_to_path: false}}
log: {log_file_level: disable, log_stream_level: disable}
telemetry_capture: {gpu: ~, cpu: true, per_cpu: true, process_info: true, mem: true, disk: true, network: true, machine_info: true}
instrumentation: {enabled: true}
mq: {enabled: false}
kv_db: {enabled: false}
"""
    % sys.argv[1]
)
os.environ["FLOWCEPT_SETTINGS_PATH"] = str(settings)
import psutil
from flowcept import Flowcept, flowcept_task


@flowcept_task(output_names="product")
def multiply(x, y):
    end = time.process_time() + 0.2
    while time.process_time() < end:
        sum(range(1000))
    return x * y


with Flowcept(workflow_name="products", start_persistence=False):
    for step in range(2):
        multiply(step, 3)

records = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
tasks = [record for record in records if record["type"] == "task"]
user = [[task[f"telemetry_at_{side}"]["process"]["cpu_times"]["user"] for side in ("start", "end")] for task in tasks]
seconds = sum(task["ended_at"] - task["started_at"] for task in tasks)
facts = {
    "tasks": [["multiply", len(tasks), seconds]],
    "user": sum(end - start for start, end in user),
    "memory": psutil.virtual_memory().total,
}
print(json.dumps(facts))
