"""The tests run the real profiler: PROFILER_BIN is its path."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest

import profiler
from profiler import Reader

BINARY = os.environ.get("PROFILER_BIN")
if not BINARY:
    raise pytest.UsageError("PROFILER_BIN is not set: the path of the binary `profiler`")
os.environ["PROFILER"] = BINARY

pytest_plugins = ["pytester"]

Run = Callable[..., Reader]


def run_script(directory: Path, source: str, *options: str, name: str = "test") -> Reader:
    script = directory / "script.py"
    script.write_text(textwrap.dedent(source))
    command = [str(BINARY), "run", "-q", "-i", "100ms", "--out", str(directory), "--run-id", name, *options, "--"]
    done = subprocess.run([*command, sys.executable, str(script)], cwd=directory, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return profiler.open(directory / name)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Profiles a script, and opens the run."""
    return lambda source, *options: run_script(tmp_path, source, *options)


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """A run with regions, children, I/O and latencies."""
    yield run_script(
        tmp_path_factory.mktemp("example"),
        """
        import subprocess, time, profiler
        with profiler.region("burn"):
            end = time.process_time() + 0.3
            while time.process_time() < end:
                pass
        with profiler.region("children"):
            for _ in range(3):
                subprocess.run(["head", "-c", "100000", "/dev/zero"], stdout=subprocess.DEVNULL)
        with open("file", "wb") as file:
            file.write(bytes(1 << 20))
        profiler.gauge("memory", 2.5, "bytes")
        time.sleep(0.3)
        """,
    )


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, each with its regions 1 and 2."""
    directory = tmp_path_factory.mktemp("profiles")
    for name in ("first", "second"):
        source = f"""
            import time, profiler
            with profiler.region("work", run="{name}"):
                time.sleep(0.15)
                profiler.event("{name}")
            """
        run_script(directory, source, "--label", f"name={name}", name=name)
    (directory / "notes").mkdir()
    return directory


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an S3 server with a bucket."""
    server = pytest.importorskip("moto.server", reason="the newest Python only").ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    # Servers of one process share their buckets.
    request = urllib.request.Request(f"{address}/moto-api/reset", method="POST")
    urllib.request.urlopen(request).close()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    yield address
    server.stop()


@pytest.fixture
def client(bucket: str) -> Any:
    """A client of the server, with an empty bucket of the name `bucket`."""
    boto3 = pytest.importorskip("boto3")
    client = boto3.client("s3", endpoint_url=bucket, region_name="eu-west-1")
    client.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    return client


def rows(reader: Reader, table: str = "region", **where: Any) -> list[dict[str, Any]]:
    """Rows in the order of the marks, with JSON as text."""
    found = reader[table].arrow().to_pylist()
    if table == "region":
        found.sort(key=lambda row: int(row["region_id"]))
    return [row for row in found if all(row[name] == value for name, value in where.items())]


def away(reader: Reader, name: str) -> float:
    """Seconds of a region before its first reading, and those that the hypervisor took from all CPUs."""
    (region,) = rows(reader, "region_usage", name=name)
    stolen = sum(row["steal_ns"] or 0 for row in rows(reader, "system"))
    return float((max(region["start_offset_ns"], 0) + stolen) / 1e9)


def losses(reader: Reader) -> list[dict[str, Any]]:
    return [loss for loss in reader.losses if loss["what"] == "marks"]
