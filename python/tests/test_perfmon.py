"""HDF5, pickle and ORC from the files of `profiler export perfmon`."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Optional

import pytest
from conftest import BINARY

from profiler import Error, perfmon

pandas = pytest.importorskip("pandas")
pytest.importorskip("tables")

WORK = "for size in 20M 9M; do head -c $size /dev/zero | sha256sum > /dev/null; sleep 0.3; done"


def record(directory: Path, host: str, *options: str, counter: Optional[Path] = None) -> None:
    command = [str(BINARY), "run", "-q", "-i", "100ms", "--run-id", "both", "--hostname", host, "--out", str(directory)]
    with subprocess.Popen([*command, *options, "--", "sh", "-c", WORK]) as process:
        energy = 1000
        while process.poll() is None:
            if counter:
                energy += 500
                # At once and of constant length: no reading is a part of it.
                descriptor = os.open(counter, os.O_WRONLY)
                os.pwrite(descriptor, f"{energy:012}\n".encode(), 0)
                os.close(descriptor)
            time.sleep(0.02)
    assert process.returncode == 0


def energy_counter(root: Path) -> Path:
    """A directory in the form of /sys, of a node with an energy meter."""
    domain = root / "class" / "powercap" / "intel-rapl:0"
    domain.mkdir(parents=True)
    for name, value in (("name", "package-0"), ("energy_uj", f"{1000:012}"), ("max_energy_range_uj", 2**32), ("enabled", 1)):
        (domain / name).write_text(f"{value}\n")
    return root


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The export of a run on two nodes, of which one has an energy meter."""
    directory = tmp_path_factory.mktemp("perfmon")
    sysfs = energy_counter(directory / "sys")
    counter = sysfs / "class" / "powercap" / "intel-rapl:0" / "energy_uj"
    record(directory, "node1", "--sysfs", str(sysfs), counter=counter)
    record(directory, "node2")
    subprocess.run([str(BINARY), "export", "perfmon", directory / "both", "-o", directory / "export"], check=True)
    yield directory / "export"


def command(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "profiler.perfmon", *map(str, arguments)]
    return subprocess.Popen(line, stderr=subprocess.PIPE, text=True, **options)


def fails(*arguments: object, **options: Any) -> tuple[int, str]:
    process = command(*arguments, **options)
    _, stderr = process.communicate()
    assert stderr.startswith("profiler: ") and stderr.count("\n") == 1, stderr
    return process.returncode, stderr


def keys(path: Path) -> set[str]:
    with pandas.HDFStore(str(path), mode="r") as store:
        return {key.lstrip("/") for key in store.keys()}


def equal(found: Any, export: Path, metric: str = "cpu_metrics") -> None:
    expected = pandas.read_parquet(export / f"{metric}.parquet")
    pandas.testing.assert_frame_equal(found, expected, check_dtype=False)


def test_documented_line_reads_the_values(export: Path, tmp_path: Path) -> None:
    path = tmp_path / "metrics.h5"
    assert command("hdf5", export, "-o", path, "--jobid", 3072).wait() == 0
    cpu_metrics = pandas.read_hdf(str(path), "cpu_metrics_3072")
    equal(cpu_metrics, export)
    equal(pandas.read_hdf(str(path), "perf_metrics_3072"), export, "perf_metrics")
    documents = json.loads((export / "metrics" / "cpu_metrics.json").read_text())
    for host in ("node1", "node2"):
        rows = cpu_metrics[cpu_metrics["Host"] == host]
        assert list(rows["Timestamps"]) == documents[host]["time_stamps"]
        assert list(rows["CPU time [s]"]) == documents[host]["cpu_time"]
        assert list(rows["Memory RSS [bytes]"].dropna()) == [x for x in documents[host]["memory_info"]["rss"] if x]
    energy = cpu_metrics.groupby("Host")["RAPL package 0 [uJ]"].count()
    assert energy["node1"] > 1 and energy["node2"] == 0


def test_job_is_that_of_the_export(export: Path, tmp_path: Path) -> None:
    path = perfmon.to_hdf(export, tmp_path / "metrics.h5")
    assert keys(path) == {"cpu_metrics_both", "perf_metrics_both"}
    perfmon.to_hdf(export, path, "12+1.server")
    # A key that exists is replaced.
    perfmon.to_hdf(export, path)
    assert len(keys(path)) == 4 and sorted(os.listdir(tmp_path)) == ["metrics.h5"]
    equal(pandas.read_hdf(str(path), "cpu_metrics_12+1.server"), export)
    equal(pandas.read_hdf(str(path), "cpu_metrics_both"), export)


def test_pickle_and_orc(export: Path, tmp_path: Path) -> None:
    from pyarrow import orc

    assert {path.name for path in perfmon.to_orc(export, tmp_path)} == {"cpu_metrics.orc", "perf_metrics.orc"}
    equal(orc.read_table(tmp_path / "cpu_metrics.orc").to_pandas(), export)
    assert command("pickle", export, "-o", tmp_path).wait() == 0
    equal(pandas.read_pickle(tmp_path / "cpu_metrics.pkl"), export)
    code, line = fails("pickle", export, "-o", tmp_path)
    assert code == 5 and "cpu_metrics.pkl exists" in line
    assert command("pickle", export, "-o", tmp_path, "--force").wait() == 0
    assert len(os.listdir(tmp_path)) == 4


def test_processes_write_one_file_at_once(export: Path, tmp_path: Path) -> None:
    path = tmp_path / "metrics.h5"
    source = "import sys; from profiler import perfmon; [perfmon.to_hdf(*sys.argv[1:3], job) for job in sys.argv[3:]]"
    workers = [
        subprocess.Popen([sys.executable, "-c", source, str(export), str(path), f"{number}", f"{number + 1}"])
        for number in (1, 3, 5, 7)
    ]
    assert [worker.wait() for worker in workers] == [0] * 4
    assert keys(path) == {f"{metric}_{job}" for metric in ("cpu_metrics", "perf_metrics") for job in range(1, 9)}
    for job in range(1, 9):
        equal(pandas.read_hdf(str(path), f"cpu_metrics_{job}"), export)
    assert os.listdir(tmp_path) == ["metrics.h5"]


def test_threads_write_one_file_at_once(export: Path, tmp_path: Path) -> None:
    """Locks of POSIX would not exclude threads of one process; the file may also be new."""
    path = tmp_path / "metrics.h5"

    def add(number: int) -> int:
        return command("hdf5", export, "-o", path, "--jobid", number).wait()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(add, range(8))) == [0] * 8
    assert len(keys(path)) == 16


# Waits for a line, such that the moment of the kill does not depend on the time of the imports.
VICTIM = """
import sys, pandas, tables, pyarrow.feather
from profiler import perfmon
print(flush=True)
while True:
    perfmon.to_hdf(sys.argv[1], sys.argv[2], "victim")
"""


def test_killed_process_leaves_the_former_file(export: Path, tmp_path: Path) -> None:
    path = tmp_path / "metrics.h5"
    for number in range(4):
        perfmon.to_hdf(export, path, f"kept{number}")
    former = keys(path)
    chance = random.Random(1)
    abandoned = 0
    for _ in range(12):
        victim = subprocess.Popen([sys.executable, "-c", VICTIM, export, path], stdout=subprocess.PIPE)
        assert victim.stdout is not None and victim.stdout.readline()
        time.sleep(chance.uniform(0, 0.08))
        victim.send_signal(signal.SIGKILL)
        assert victim.wait() == -signal.SIGKILL
        victim.stdout.close()
        abandoned += len(os.listdir(tmp_path)) - 1
        assert former <= keys(path)
        for key in former:
            equal(pandas.read_hdf(str(path), key), export, key.rpartition("_")[0])
        perfmon.to_hdf(export, path, "after")
        assert os.listdir(tmp_path) == ["metrics.h5"]
    assert abandoned > 0


def test_reader_keeps_the_former_file(export: Path, tmp_path: Path) -> None:
    path = perfmon.to_hdf(export, tmp_path / "metrics.h5", "1")
    path.chmod(0o640)
    with pandas.HDFStore(str(path), mode="r") as store:
        perfmon.to_hdf(export, path, "2")
        equal(store["cpu_metrics_1"], export)
    assert path.stat().st_mode & 0o777 == 0o640


def test_symbolic_link_stays(export: Path, tmp_path: Path) -> None:
    (tmp_path / "link.h5").symlink_to("file.h5")
    perfmon.to_hdf(export, tmp_path / "link.h5", "1")
    perfmon.to_hdf(export, tmp_path / "link.h5", "2")
    assert (tmp_path / "link.h5").is_symlink() and len(keys(tmp_path / "file.h5")) == 4


@pytest.mark.parametrize("damage", ["missing", "cut", "text", "other table", "unfinished"])
def test_damaged_export(export: Path, tmp_path: Path, damage: str) -> None:
    copy = shutil.copytree(export, tmp_path / "copy")
    frame = copy / "cpu_metrics.feather"
    expected = str(frame)
    if damage == "missing":
        shutil.rmtree(copy)
        copy.mkdir()
        expected = "no data frames"
    elif damage == "cut":
        frame.write_bytes(frame.read_bytes()[: frame.stat().st_size // 2])
    elif damage == "text":
        frame.write_text("Host,Timestamps\n" * 99)
    elif damage == "other table":
        pandas.DataFrame({"x": [1]}).to_feather(frame)
    else:
        frame.unlink()
    path = tmp_path / "metrics.h5"
    code, line = fails("hdf5", copy, "-o", path)
    assert code == 2 and expected in line
    assert not path.exists()


@pytest.mark.parametrize("target", ["text", "directory", "absent directory", "slash"])
def test_target_that_cannot_be_written(export: Path, tmp_path: Path, target: str) -> None:
    path = tmp_path / "metrics.h5"
    job = "1"
    if target == "text":
        path.write_text("notes")
    elif target == "directory":
        path.mkdir()
    elif target == "absent directory":
        path = tmp_path / "absent" / "metrics.h5"
    else:
        job = "a/b"
    before = sorted(os.listdir(tmp_path))
    assert fails("hdf5", export, "-o", path, "--jobid", job)[0] == (2 if target == "slash" else 5)
    assert sorted(os.listdir(tmp_path)) == before
    if target == "text":
        assert path.read_text() == "notes"


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("format", ["hdf5", "orc", "pickle"])
def test_full_disk(export: Path, tmp_path: Path, format: str, exists: bool) -> None:
    """A limit of the size of files has the effects of a full disk, without mounting one."""
    output = tmp_path / "metrics.h5" if format == "hdf5" else tmp_path
    if exists and format == "hdf5":
        perfmon.to_hdf(export, output, "1")
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    limit = (len(before["metrics.h5"]) + 3000) if before else 1000

    def limited() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    code, line = fails(format, export, "-o", output, preexec_fn=limited)
    assert code == 5 and "File too large" in line, line
    assert {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)} == before


def test_read_only_directory(export: Path, tmp_path: Path) -> None:
    def without_override() -> None:
        import ctypes

        # Root, too, is refused without CAP_DAC_OVERRIDE (PR_CAPBSET_DROP).
        ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)

    path = perfmon.to_hdf(export, tmp_path / "metrics.h5", "1")
    tmp_path.chmod(0o500)
    code, line = fails("hdf5", export, "-o", path, "--jobid", "2", preexec_fn=without_override)
    tmp_path.chmod(0o700)
    assert code == 5 and "Permission denied" in line
    assert len(keys(path)) == 2


@pytest.mark.parametrize("missing", ["pyarrow", "pandas", "tables"])
def test_missing_packages(export: Path, tmp_path: Path, missing: str) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ImportError('no {missing}')")
    path: Optional[str] = os.environ.get("PYTHONPATH")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{path}" if path else str(tmp_path)}
    code, line = fails("hdf5", export, "-o", tmp_path / "metrics.h5", env=environment)
    assert code == 2 and line.startswith(f"profiler: {missing} ")
    assert not (tmp_path / "metrics.h5").exists()


def test_errors_are_exceptions(tmp_path: Path) -> None:
    with pytest.raises(Error, match="no data frames"):
        perfmon.to_hdf(tmp_path)
