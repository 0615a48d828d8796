"""Prints what Flowcept finds in a file of `profiler export flowcept`."""

import json
import os
import sys
from pathlib import Path

os.environ["FLOWCEPT_USE_DEFAULT"] = "true"
from flowcept import Flowcept

path, directory = sys.argv[1], Path(sys.argv[2])
records = Flowcept.read_buffer_file(path)
frame = Flowcept.read_buffer_file(path, return_df=True, normalize_df=True)
card = directory / "card.md"
report = directory / "report.pdf"
Flowcept.generate_report(
    report_type="workflow_card", format="markdown", input_jsonl_path=path, output_path=str(card)
)
plots = Flowcept.generate_report(
    report_type="provenance_report", format="pdf", input_jsonl_path=path, output_path=str(report)
)["plots"]
tasks = frame[frame["type"] == "task"]


def growth(key: str) -> dict[str, float]:
    """Sum of a counter's increases by activity; activities without readings have 0."""
    increase = tasks[f"telemetry_at_end.{key}"] - tasks[f"telemetry_at_start.{key}"]
    return increase.groupby(tasks["activity_id"]).sum().to_dict()


rows = [line.split("|")[1:-1] for line in card.read_text().splitlines() if line.startswith("| ")]
facts = {
    "records": len(records),
    "status": tasks.groupby("activity_id")["status"].unique().map(list).to_dict(),
    "user": growth("process.cpu_times.user"),
    "written": growth("process.io_counters.write_chars"),
    "tree": growth("tree.user_ns"),
    "plots": plots,
    "pdf": report.read_bytes()[:5].decode(),
    "card": {row[0].strip(): row[1].strip() for row in rows},
    "parents": tasks["parent_task_id"].nunique() if "parent_task_id" in tasks else 0,
    "workflow": [record["name"] for record in records if record["type"] == "workflow"],
}
json.dump(facts, sys.stdout)
