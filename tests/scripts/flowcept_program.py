"""Runs a program under Flowcept itself, its import changed back, and prints the tasks that Flowcept
records: flowcept_program.py PROGRAM DIRECTORY"""

import json
import os
import sys
from pathlib import Path

program, directory = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute()
buffer = directory / "own.jsonl"
settings = directory / "settings.yaml"
settings.write_text(
    """
project: {debug: false, db_flush_mode: offline, dump_buffer: {enabled: true, path: %s, append_id_to_path: false, append_workflow_id_to_path: false}}
log: {log_file_level: disable, log_stream_level: disable}
telemetry_capture: {gpu: ~, cpu: true, mem: true}
instrumentation: {enabled: true}
mq: {enabled: false}
kv_db: {enabled: false}
"""
    % buffer
)
os.environ["FLOWCEPT_SETTINGS_PATH"] = str(settings)
source = program.read_text().replace("from profiler.flowcept import", "from flowcept import")
sys.argv = [str(program), "output"]
os.chdir(directory)
exec(compile(source, str(program), "exec"), {"__name__": "__main__"})

tasks = [json.loads(line) for line in buffer.read_text().splitlines()]
# Without arguments, `used` is an empty object there; here it is absent.
facts = [
    {key: task.get(key) or None for key in ("activity_id", "status", "used", "generated", "tags")}
    for task in tasks
    if task.get("type") != "workflow"
]
print(json.dumps(facts))
