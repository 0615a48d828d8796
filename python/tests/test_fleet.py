"""Queries over many runs, compared with `profiler summary` and with known numbers."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Optional

import pyarrow
import pytest
from conftest import BINARY, run_script
from pyarrow import parquet

from profiler import Error, fleet
from profiler.fleet._command import main
from profiler.fleet._queries import ANSWERS, in_order

START = datetime(2026, 11, 20, 10, tzinfo=timezone.utc)
SECOND = 1_000_000_000
SCHEMA = json.loads(subprocess.run([str(BINARY), "schema", "--json"], capture_output=True, check=True).stdout)

TYPES = {
    "VARCHAR": pyarrow.string(),
    "BOOLEAN": pyarrow.bool_(),
    "INTEGER": pyarrow.int32(),
    "UINTEGER": pyarrow.uint32(),
    "BIGINT": pyarrow.int64(),
    "UBIGINT": pyarrow.uint64(),
    "DOUBLE": pyarrow.float64(),
    "TIMESTAMPTZ": pyarrow.timestamp("us", "UTC"),
    "VARCHAR[]": pyarrow.list_(pyarrow.string()),
}


class Site:
    """A dataset with known rows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, name: str, host: str, minute: float = 0, minutes: float = 1, **facts: Any) -> None:
        """The metadata of a run on a host."""
        directory = self.path / name
        directory.mkdir(parents=True, exist_ok=True)
        (self.path / "schema.json").write_text(json.dumps(SCHEMA))
        start = START + timedelta(minutes=minute)
        manifest = {
            "run_id": name,
            "hostname": host,
            "state": "complete",
            "schema_version": SCHEMA["schema_version"],
            "start_ts": int(start.timestamp()) * SECOND,
            "end_ts": int((start + timedelta(minutes=minutes)).timestamp() * 1e6) * 1000,
            "user": "ana",
            "labels": {"project": "alpha", "partition": "cpu"},
            "target": {"job": {"scheduler": "slurm", "id": name[6:]}},
            **facts,
        }
        file = directory / ("run.json" if not (directory / "run.json").exists() else f"run.{host}.json")
        file.write_text(json.dumps(manifest))

    def rows(self, name: str, host: str, table: str, rows: list[dict[str, Any]], part: int = 0) -> None:
        """Rows of a table; columns that are not given are null."""
        definition = next(one for one in SCHEMA["tables"] if one["table"] == table)
        fields = [(column["name"], TYPES[column["type"]]) for column in definition["columns"]]
        schema = pyarrow.schema([*fields, ("run", pyarrow.string())])
        directory = self.path / name / table / f"host={host}"
        directory.mkdir(parents=True, exist_ok=True)
        found = pyarrow.Table.from_pylist([{**row, "run": name} for row in rows], schema)
        parquet.write_table(found, directory / f"part-{part:05}.parquet")

    def sched(self, name: str, host: str, minute: int, oncpu_s: float, runqueue_s: float = 0) -> None:
        row = {"ts": START + timedelta(minutes=minute, seconds=30), "interval_ns": SECOND, "pid": 7, "start_ts": START}
        times = {"oncpu_ns": int(oncpu_s * SECOND), "runqueue_ns": int(runqueue_s * SECOND), "blocked_ns": 0}
        self.rows(name, host, "sched", [{**row, **times}], part=minute)

    def results(self, *names: str, engine: str = "duckdb", **options: Any) -> dict[str, list[dict[str, Any]]]:
        opened = fleet.connect(engine, fleet.open_dataset(str(self.path), **options))
        try:
            return {name: table.to_pylist() for name, table in fleet.run(opened, names).items()}
        finally:
            opened.close()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


WORK = """
    import os, subprocess, time
    end = time.process_time() + {cpu}
    while time.process_time() < end:
        pass
    with open("file", "wb") as file:
        file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    subprocess.run(["false"])
    time.sleep(0.2)
    """


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs of the profiler."""
    directory = tmp_path_factory.mktemp("fleet")
    for number, cpu in enumerate((0.3, 0.1, 0.5)):
        labels = ["--label", f"project=p{number % 2}", "--label", "campaign=c", "--source", "+file_io=syscalls"]
        run_script(directory, WORK.format(cpu=cpu), *labels, name=f"run{number}")
    return directory


def answers(path: Path, engine: str = "duckdb") -> dict[str, list[dict[str, Any]]]:
    return Site(path).results(*ANSWERS, engine=engine)


def assert_equal(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert len(found[name]) == len(rows), name
        for row, other in zip(found[name], rows):
            for key, value in other.items():
                if isinstance(value, float) and row[key] is not None:
                    assert math.isclose(row[key], value, rel_tol=1e-9, abs_tol=1e-9), (name, key)
                else:
                    assert row[key] == value, (name, key)


# Definitions

SAME = {
    "cpu_hours": ("cpu_s", 3600),
    "node_cpu_hours": ("node_cpu_hours", 1),
    "unused_cpu_hours": ("node_unused_cpu_hours", 1),
    "energy_j": ("energy_j", 1),
    "package_energy_j": ("package_energy_j", 1),
    "gpu_hours": ("gpu_sm_seconds", 3600),
    "file_read_bytes": ("file_read_bytes", 1),
    "file_write_bytes": ("file_write_bytes", 1),
    "storage_read_bytes": ("storage_read_bytes", 1),
    "storage_write_bytes": ("storage_write_bytes", 1),
    "processes": ("processes", 1),
}


def test_jobs_have_the_figures_of_summary(profiles: Path) -> None:
    found = answers(profiles)["jobs"]
    assert [row["run"] for row in found] == ["run0", "run1", "run2"]
    for row in found:
        command = [str(BINARY), "summary", "--json", str(profiles / row["run"])]
        summary = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        figures = {**summary["runs"][0]["total"], **summary["runs"][0]["nodes"][0]}
        assert figures["cpu_s"] > 0 and figures["node_unused_cpu_hours"] is not None
        for name, (figure, factor) in SAME.items():
            expected = figures[figure]
            if expected is None:
                assert row[name] is None, name
            else:
                assert math.isclose(row[name] * factor, expected, rel_tol=1e-9), name
        assert row["cpu_hours"] > 0 and row["file_write_bytes"] >= 1 << 20
        assert row["failed_processes"] == 1


# Where rows are


@pytest.fixture
def copied(profiles: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(profiles, tmp_path / "profiles"))


def compact(path: Path) -> None:
    subprocess.run([str(BINARY), "compact", str(path)], check=True, capture_output=True)


def test_compacted_runs_have_the_same_results(copied: Path) -> None:
    before = answers(copied)
    compact(copied)
    files = fleet.open_dataset(str(copied)).files["usage"]
    assert files.compacted and not files.parts and files.places is None
    assert_equal(answers(copied), before)


def test_runs_without_schema_have_the_same_results(copied: Path) -> None:
    before, columns = answers(copied), fleet.open_dataset(str(copied)).columns
    (copied / "schema.json").unlink()
    found = fleet.open_dataset(str(copied)).columns
    assert {table: dict(sorted(of.items())) for table, of in found.items()} == {
        table: dict(sorted(of.items())) for table, of in columns.items()
    }
    assert_equal(answers(copied), before)


def test_rows_count_once_while_runs_are_compacted(copied: Path, profiles: Path) -> None:
    before = answers(copied)
    compact(copied)
    # A compaction that has not reached this run: its rows are in both places.
    shutil.rmtree(copied / "run1")
    shutil.copytree(profiles / "run1", copied / "run1")
    files = fleet.open_dataset(str(copied)).files["usage"]
    assert files.compacted and files.parts and files.places is not None
    assert_equal(answers(copied), before)


def test_rows_of_removed_runs_do_not_count(copied: Path) -> None:
    before = answers(copied)
    compact(copied)
    shutil.rmtree(copied / "run1")
    jobs = [row for row in before["jobs"] if row["run"] != "run1"]
    assert_equal({"jobs": answers(copied)["jobs"]}, {"jobs": jobs})


def test_dask_workers_have_the_same_results(copied: Path) -> None:
    expected = answers(copied)
    assert_equal(answers(copied, "dask"), expected)
    compact(copied)
    assert_equal(answers(copied, "dask"), expected)


def test_node_rows_of_a_split_run(site: Site) -> None:
    """With --split-by job, the rows of the node are in another run, of another time."""
    site.run("node", "a", 0, 10, target={"node": True})
    states = {"user_ns": SECOND, "idle_ns": 3 * SECOND}
    others = ("nice_ns", "system_ns", "iowait_ns", "irq_ns", "softirq_ns", "steal_ns", "guest_ns", "guest_nice_ns")
    sample = {"interval_ns": SECOND, "cpus": 4, **states, **dict.fromkeys(others, 0)}
    system = [{"ts": START + timedelta(seconds=second), **sample} for second in range(1, 601)]
    site.rows("node", "a", "system", system)
    power = [{"ts": row["ts"], "interval_ns": SECOND, "package_power_w": 100.0} for row in system]
    site.rows("node", "a", "timeline", power)
    job = {"job": {"scheduler": "slurm", "id": "1"}, "node_run": "node"}
    earlier = {"start_ts": int(START.timestamp() + 60) * SECOND, "end_ts": int(START.timestamp() + 90) * SECOND}
    site.run("slurm-1", "a", 5, 1, target=job, earlier=[{**earlier, "target": job}])
    row = site.results("jobs")["jobs"]
    assert [one["run"] for one in row] == ["slurm-1"]
    # Sessions of 30 s and 60 s.
    assert math.isclose(row[0]["node_cpu_hours"], 4 * 90 / 3600)
    assert math.isclose(row[0]["unused_cpu_hours"], 3 * 90 / 3600)
    assert math.isclose(row[0]["package_energy_j"], 9000)


# Known answers


def test_slow_nodes(site: Site) -> None:
    for job in range(3):
        for host, seconds in (("a", 10.0), ("b", 10.1), ("c", 13.0), ("d", 9.9)):
            site.run(f"slurm-{job}", host, job)
            site.sched(f"slurm-{job}", host, job, seconds)
    found = site.results("slow_nodes")["slow_nodes"]
    assert [(row["host"], row["jobs"]) for row in found] == [("c", 3)]
    assert math.isclose(found[0]["slowdown"], 13 / 10.05)


def test_interference(site: Site) -> None:
    for name in ("slurm-1", "slurm-2"):
        site.run(name, "a", 0, 3)
    site.sched("slurm-1", "a", 0, 30, 3)
    site.sched("slurm-1", "a", 1, 30, 10)
    site.sched("slurm-2", "a", 1, 20, 5)
    first, second = site.results("interference")["interference"]
    assert (first["run"], first["neighbour"], first["node_minutes"]) == ("slurm-1", "slurm-2", 1)
    assert math.isclose(first["waited_shared"], 10 / 40) and math.isclose(first["waited_alone"], 3 / 33)
    assert (second["run"], second["waited_alone"]) == ("slurm-2", None)


def test_filesystem_pressure(site: Site) -> None:
    for name, host, operations in (("slurm-1", "a", 600), ("slurm-1", "b", 300), ("slurm-2", "a", 100)):
        site.run(name, host, 0, 3)
        row: dict[str, Any] = {"ts": START + timedelta(seconds=30), "interval_ns": SECOND, "pid": 7, "start_ts": START}
        row |= {"mount": "/scratch", "fstype": "lustre", "method": "vfs", "read_ops": operations, "write_ops": 0}
        row |= {"read_bytes": 6000 * operations, "write_bytes": 0, "errors": 0}
        row |= dict.fromkeys(("fsyncs", "opens", "creates", "unlinks", "renames", "mkdirs"), 0)
        site.rows(name, host, "file_io", [row, {**row, "method": "accounting"}, {**row, "tid": 8}])
    one, two = site.results("filesystem_pressure")["filesystem_pressure"]
    assert (one["run"], one["mount"], one["data_ops_per_s"], one["share"]) == ("slurm-1", "/scratch", 15, 0.9)
    assert one["read_bytes_per_s"] == 90_000 and one["minute"] == START
    assert (two["run"], two["share"]) == ("slurm-2", 0.1)


def test_anomalies(site: Site) -> None:
    for job, minutes in enumerate((2, 2.02, 1.98, 2.01, 2, 2, 4, 2)):
        site.run(f"slurm-{job}", "a", 10 * job, minutes, labels={"name": "daily"})
    # Too few earlier jobs of another user.
    site.run("slurm-9", "a", 90, 60, user="ben", labels={"name": "daily"})
    found = site.results("anomalies")["anomalies"]
    assert [(row["run"], row["figure"], row["value"], row["usual"]) for row in found] == [
        ("slurm-6", "wall_s", 240, 120)
    ]
    assert found[0]["earlier_jobs"] == 6


def test_accounting_and_efficiency(site: Site) -> None:
    sample = {"interval_ns": 60 * SECOND, "cpus": 2, "idle_ns": 60 * SECOND, "user_ns": 60 * SECOND}
    others = ("nice_ns", "system_ns", "iowait_ns", "irq_ns", "softirq_ns", "steal_ns", "guest_ns", "guest_nice_ns")
    for job, (user, project, seconds) in enumerate((("ana", "alpha", 60), ("ana", "alpha", 30), ("ben", None, 12))):
        name = f"slurm-{job}"
        site.run(name, "a", job, user=user, labels={"project": project} if project else {})
        ts = START + timedelta(minutes=job + 1)
        site.rows(name, "a", "system", [{"ts": ts, **sample, **dict.fromkeys(others, 0)}])
        of_process = {"ts": ts, "interval_ns": SECOND, "pid": 7, "start_ts": START, "system_ns": 0}
        site.rows(name, "a", "usage", [{**of_process, "user_ns": seconds * SECOND}])
    results = site.results("accounting", "inefficient_jobs")
    rows = [(r["user_name"], r["project"], r["jobs"], round(r["cpu_hours"] * 3600, 6)) for r in results["accounting"]]
    assert rows == [("ana", "alpha", 2, 90), ("ben", None, 1, 12)]
    efficient = [(row["run"], row["cpu_efficiency"]) for row in results["inefficient_jobs"]]
    assert efficient == [("slurm-2", 0.1), ("slurm-1", 0.25), ("slurm-0", 0.5)]


def test_users_of_split_runs_have_names(site: Site) -> None:
    for job, user in enumerate(("0", "4294967294", "ana", "")):
        site.run(f"slurm-{job}", "a", user=user)
    assert [row["user_name"] for row in site.results("jobs")["jobs"]] == ["root", "4294967294", "ana", None]


# Selection and errors


def test_time_selects_runs(site: Site) -> None:
    for minute in (0, 10, 20):
        site.run(f"slurm-{minute}", "a", minute, 5)

    def found(since: Optional[int], until: Optional[int]) -> list[str]:
        limits = [None if limit is None else START + timedelta(minutes=limit) for limit in (since, until)]
        return [row["run"] for row in site.results("jobs", since=limits[0], until=limits[1])["jobs"]]

    assert found(None, None) == ["slurm-0", "slurm-10", "slurm-20"]
    assert found(4, 20) == ["slurm-0", "slurm-10"]
    assert found(12, None) == ["slurm-10", "slurm-20"]
    with pytest.raises(Error, match="no runs"):
        found(6, 9)


def test_several_directories(profiles: Path, copied: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (copied / "run1").rename(other / "run1")
    compact(other)
    opened = fleet.connect("duckdb", fleet.open_dataset([str(copied), str(other)]))
    found = {name: table.to_pylist() for name, table in fleet.run(opened, ANSWERS).items()}
    assert_equal(found, answers(profiles))


def test_damaged_runs_are_left_out_and_listed(site: Site) -> None:
    site.run("slurm-1", "a")
    for name, text in (("slurm-2", "{"), ("slurm-3", "[]")):
        (site.path / name).mkdir()
        (site.path / name / "run.json").write_text(text)
    site.run("slurm-4", "a", state="running", end_ts=None)
    (site.path / "slurm-1" / "compacted.json").write_text(
        json.dumps({"tables": {"usage": {"a": {"rows": 1, "files": ["../../../etc/passwd"]}}}})
    )
    dataset = fleet.open_dataset(str(site.path))
    assert dataset.sessions["run"].to_pylist() == ["slurm-4"]
    reasons = [note.split(":")[0] for note in dataset.notes]
    assert reasons == ["slurm-1", "slurm-2", "slurm-3", "slurm-4"]


def test_order_of_queries() -> None:
    names = [query.name for query in in_order(["anomalies", "slow_nodes"])]
    assert names == ["node_jobs", "programs", "jobs", "anomalies", "sched_minutes", "slow_nodes"]
    scans = [query.name for query in in_order(ANSWERS) if query.is_scan]
    assert scans == ["node_jobs", "programs", "sched_minutes", "file_minutes"]
    with pytest.raises(Error, match="no query 'nothing'"):
        in_order(["nothing"])


def test_command(site: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    site.run("slurm-1", "a", user=name, labels={"project": name, "campaign": name, "name": name})
    sched = {"ts": START, "interval_ns": SECOND, "pid": 7, "start_ts": START, "system_ns": 0, "user_ns": SECOND}
    site.rows("slurm-1", "a", "usage", [sched])
    output = tmp_path / "report"
    assert main(["all", "--dataset", str(site.path), "-o", str(output)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and "1 sessions of 1 nodes" in printed.err
    assert {path.name for path in output.iterdir()} == {"index.html"} | {
        f"{query}.{form}" for query in ANSWERS for form in ("csv", "parquet")
    }
    page = (output / "index.html").read_text()
    assert "<script" not in page and "&lt;script&gt;" in page
    assert parquet.read_table(output / "jobs.parquet")["user_name"].to_pylist() == [name]
    assert main(["jobs", "--dataset", str(tmp_path / "nothing")]) == 1
    assert "nothing: No such file" in capsys.readouterr().err
    assert main(["jobs", "--dataset", str(site.path), "--master", "spark://a:1"]) == 1
    assert "--master is an option of spark and dask" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["unknown", "--dataset", str(site.path)])
    helped = subprocess.run([sys.executable, "-m", "profiler.fleet", "--help"], capture_output=True, text=True)
    assert "inefficient_jobs" in helped.stdout
