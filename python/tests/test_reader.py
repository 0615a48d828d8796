"""Reads of runs, compared with pyarrow, DuckDB and the program itself on the same files."""

from __future__ import annotations

import glob
import json
import os
import random
import re
import shutil
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest
from conftest import BINARY, away, losses, rows, run_script

import profiler
from profiler import Histogram, Reader, fleet
from profiler import _histogram as histograms


def files(reader: Reader, table: str) -> Any:
    """The Parquet files of a table, without the package."""
    parts = [part for path in reader.paths for part in glob.glob(f"{path}/{table}/host=*/part-*.parquet")]
    assert parts
    return pyarrow.concat_tables([pyarrow.parquet.ParquetFile(part).read() for part in parts])


def ordered(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=str)


# Tables


def test_all_forms_have_the_same_rows(example: Reader) -> None:
    usage, expected = example.usage, files(example, "usage")
    assert len(usage) == expected.num_rows > 5
    wanted = ordered(expected.to_pylist())
    names = expected.column_names
    host = {row["host"] for row in usage.arrow().to_pylist()}
    assert host == {example.metadata[0]["hostname"]}
    assert ordered(usage.arrow(names).to_pylist()) == wanted
    assert ordered(usage.dataset().to_table(names).to_pylist()) == wanted
    assert ordered(usage.pl(names).to_dicts()) == wanted
    assert ordered(usage.lazy().select(names).collect().to_dicts()) == wanted
    assert ordered(pyarrow.Table.from_pandas(usage.df(names), preserve_index=False).to_pylist()) == wanted
    assert ordered(usage.sql("FROM this").to_arrow_table().select(names).to_pylist()) == wanted
    assert ordered(example.sql("FROM usage").to_arrow_table().select(names).to_pylist()) == wanted
    # Types survive, with nulls.
    assert usage.arrow(names).schema.types == expected.schema.types
    assert str(usage.df().dtypes["user_ns"]) == "uint64[pyarrow]"


def test_compacted_runs_have_the_same_rows(tmp_path: Path) -> None:
    script = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end:\n    pass\n"
    for name in ["a", "b", "c"]:
        run_script(tmp_path, script, name=name)
    paths = [str(tmp_path / "a"), str(tmp_path / "b")]

    def found() -> list[list[dict[str, Any]]]:
        both, one = profiler.open([*paths])["usage"], profiler.open(paths[0])["usage"]
        tables = [both.arrow(), both.dataset().to_table(), both.lazy().collect().to_arrow(), one.dataset().to_table()]
        names = ["run", "host", "pid", "ts", "user_ns", "rss"]
        return [ordered(table.select(names).to_pylist()) for table in tables]

    before = found()
    assert len(before[0]) > len(before[3]) > 1
    assert before[0] == before[1] == before[2]
    # Of the third run, only the compacted rows are left, in the files of the others.
    subprocess.run([str(BINARY), "compact", str(tmp_path)], check=True, capture_output=True)
    assert (tmp_path / "compacted" / "usage").is_dir() and not (tmp_path / "a" / "usage").exists()
    assert found() == before


def test_projections_and_filters(example: Reader) -> None:
    from pyarrow import compute

    pid = rows(example, "process", comm="head")[0]["pid"]
    expected = [row["user_ns"] for row in files(example, "usage").to_pylist() if row["pid"] == pid]
    assert expected
    for table in (example.usage, example["process_usage"]):
        found = table.arrow(["user_ns"], compute.field("pid") == pid)
        assert found.column_names == ["user_ns"]
        assert sorted(found.column(0).to_pylist()) == sorted(expected)
    assert example.usage.sql(f"SELECT sum(user_ns) FROM this WHERE pid = {pid}").fetchall() == [(sum(expected),)]


def test_columns_are_those_of_the_program(example: Reader, tmp_path: Path) -> None:
    output = subprocess.run([str(BINARY), "schema", "--json"], capture_output=True, check=True).stdout
    schema = json.loads(output)
    views = re.findall(r'CREATE OR REPLACE VIEW "?(\w+)', (Path(example.paths[0]) / "views.sql").read_text())
    assert example.tables == sorted(views)
    assert {table["table"] for table in schema["tables"]} < set(views)
    for table in schema["tables"]:
        known = [(c["name"], c["type"], c["unit"], c["kind"], c["help"]) for c in table["columns"]]
        known.append(("host", "VARCHAR", "", "label", "Name of the node"))
        assert [tuple(column) for column in example[table["table"]].columns] == known
    for view in schema["views"]:
        names = [column["name"] for column in view["columns"]]
        assert [column.name for column in example[view["view"]].columns] == names
    joined = {column.name: column for column in example["process_usage"].columns}
    assert joined["cmdline"].help == {column.name: column.help for column in example.process.columns}["cmdline"]
    own = {column.name: column for column in example.usage.columns}
    assert {name: joined[name] for name in ("rss", "user_ns")} == {name: own[name] for name in ("rss", "user_ns")}
    units = example.usage.units
    assert (units["user_ns"], units["rss"], units["minor_faults"], "pid" in units) == ("ns", "bytes", "1", False)
    assert "Table(usage: " in repr(example.usage) and "usage" in dir(example)
    # A run that was copied alone: its Parquet files and views have them.
    copy = tmp_path / "copy"
    shutil.copytree(example.paths[0], copy)
    reader = profiler.open(copy)
    assert reader.tables == example.tables
    for name in ("usage", "latency", "run", "process_usage"):
        assert sorted(reader[name].columns) == sorted(example[name].columns)
    assert ordered(rows(reader, "usage")) == ordered(rows(example, "usage"))
    # A run of an older version has a file of its own.
    (copy / "schema.json").write_bytes(output)
    assert profiler.open(copy)["gpu"].columns == example["gpu"].columns


def test_schema_beside_runs_of_others(example: Reader, tmp_path: Path) -> None:
    run, schema = tmp_path / "out/run", tmp_path / "out/schema.json"
    shutil.copytree(example.paths[0], run)
    content = json.loads((Path(example.paths[0]).parent / "schema.json").read_bytes())
    # An empty table is a view then.
    expected = [column.name for column in profiler.open(run)["gpu"].columns]

    def helps() -> set[str]:
        reader = profiler.open(run)
        assert reader.tables == example.tables
        assert sorted(reader["usage"].columns) == sorted(example["usage"].columns)
        assert sorted(column.name for column in reader["gpu"].columns) == sorted(expected)
        return {column.help for column in reader["gpu"].columns if column.name not in ("host", "run")}

    for bad in ("{", "[]", '{"tables": 7}', json.dumps({**content, "schema_version": 99})):
        schema.write_text(bad)
        assert helps() == {""}
        schema.unlink()
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_text(json.dumps(content))
    schema.symlink_to(elsewhere)
    assert helps() == {""}
    schema.unlink()
    os.mkfifo(schema)
    assert helps() == {""}
    schema.unlink()
    schema.write_text(json.dumps(content) + " " * (4 << 20))
    assert helps() == {""}
    schema.write_text(json.dumps(content))
    assert "" not in helps()
    # Of another version: for tables with rows, the files count.
    usage = next(table for table in content["tables"] if table["table"] == "usage")
    usage["columns"].append({**usage["columns"][0], "name": "of_the_future"})
    schema.write_text(json.dumps({**content, "edition": "schema 3, profiler 99.0.0, 2000 columns"}))
    assert "" not in helps()
    if os.geteuid() == 0:
        os.chown(schema, 12345, 12345)
        assert helps() == {""}
        os.chown(run, 12345, 12345)
        assert "" not in helps()


def test_every_table_and_view_can_be_read(example: Reader) -> None:
    connection = duckdb.connect()
    # The paths in views.sql are relative.
    connection.execute(f"SET file_search_path = '{example.paths[0]}'")
    connection.execute((Path(example.paths[0]) / "views.sql").read_text())
    assert "gpu" in example.tables and "process_tree" in example.tables
    for table in example:
        found = connection.execute(f"SELECT count(*) FROM {table.name}").fetchone()
        assert found == (len(table),) == (table.arrow().num_rows,), table.name
        declared = {column.name: column.type for column in table.columns}
        assert set(declared) - {"host"} <= set(table.arrow().column_names), table.name
    assert len(example.process_cpu()) == len(example.processes()) > 0
    assert list(example.process_cpu(["comm"])) == ["comm"]
    assert rows(example, "gpu") == [] and example.gpu.df().empty and example.gpu.pl().height == 0
    assert example.gpu.lazy().collect().height == 0


def test_joins(example: Reader) -> None:
    regions = example.regions()
    assert list(regions["name"]) == ["burn", "children"] and set(regions["status"]) == {"finished"}
    burn = regions[regions["name"] == "burn"].iloc[0]
    burnt, apart = (burn["user_ns"] + burn["system_ns"]) / 1e9, away(example, "burn")
    assert 0.29 - apart <= burnt < 0.5 + apart
    processes = example.processes()
    assert list(processes["comm"]).count("head") == 3
    usage = {row["pid"]: row for row in example["process_usage"].sql("SELECT pid, comm FROM this").pl().to_dicts()}
    assert set(usage) == set(processes["pid"])
    used = {pid: sum(r["oncpu_ns"] for r in rows(example, "sched", pid=pid)) / 1e9 for pid in processes["pid"]}
    assert dict(zip(processes["pid"], processes["oncpu_s"])) == pytest.approx(used)
    depth = {row["comm"]: row["depth"] for row in rows(example, "process_tree")}
    assert depth["head"] == 1


def test_figures_are_those_of_the_program(example: Reader) -> None:
    command = [str(BINARY), "summary", "--json", *example.paths]
    expected = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)["runs"][0]
    assert example.summary() == expected and example.summaries() == [expected]
    assert 0.3 <= expected["total"]["cpu_s"] < 2


def test_sparse_runs_have_the_figures_of_full_ones(tmp_path: Path) -> None:
    """Two profilers record the same processes, most of which sleep."""
    script = "echo started; read begin; for n in 1 2 3; do :; done; echo did; read end"
    processes = []
    for _ in range(4):
        process = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdin and process.stdout and process.stdout.readline() == b"started\n"
        processes.append((process, process.stdin, process.stdout))
    targets = [argument for process, _, _ in processes for argument in ("--pid", str(process.pid))]
    profilers = []
    for switch in ("on", "off"):
        command = [str(BINARY), "run", "-q", "-i", "50ms", "--checkpoint", "200ms", "--out", str(tmp_path)]
        options = ["--sparse", switch, "--run-id", switch, *targets]
        profilers.append(subprocess.Popen([*command, *options]))

    def sampled(times: int) -> None:
        """Waits for that many more samples of both."""
        wanted: dict[str, int] = {}
        while len(wanted) < 2 or any(samples(name) < count for name, count in wanted.items()):
            wanted.update({name: samples(name) + times for name in ("on", "off") if name not in wanted})
            time.sleep(0.05)

    def samples(name: str) -> int:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return len(profiler.open(tmp_path / name).system)
        except profiler.Error:
            return 0

    sampled(5)
    _, stdin, stdout = processes[0]
    stdin.write(b"\n")
    stdin.flush()
    assert stdout.readline() == b"did\n"
    sampled(5)
    for process, stdin, _ in processes:
        stdin.close()
        process.wait()
    for one in profilers:
        assert one.wait() == 0
    sparse, full = (profiler.open(tmp_path / name) for name in ("on", "off"))
    assert len(sparse.usage) < len(full.usage) / 2
    assert len(full["usage_filled"].df()) == len(full.usage)
    memory = "SELECT ts, sum(rss)::UBIGINT AS rss, count(*) AS n FROM usage_filled GROUP BY ts"
    for reader in (sparse, full):
        found = reader.sql(f"SELECT n, target_rss_sum IS NOT DISTINCT FROM rss FROM timeline JOIN ({memory}) USING (ts) ORDER BY ts")
        numbers, are_sums = zip(*found.fetchall())
        assert numbers[0] == 4 and all(are_sums)
        exported = tmp_path / "usage.csv"
        reader.export("csv", str(exported), table="usage", force=True)
        assert len(exported.read_text().splitlines()) == 1 + len(reader["usage_filled"].df())
    per_process = (
        "SELECT pid, max(rss), sum(user_ns)::UBIGINT, sum(system_ns)::UBIGINT, sum(minor_faults)::UBIGINT"
        " FROM usage_filled GROUP BY pid ORDER BY pid"
    )
    assert sparse.sql(per_process).fetchall() == full.sql(per_process).fetchall()
    on_cpu = [reader.processes().set_index("pid")["oncpu_s"].to_dict() for reader in (sparse, full)]
    assert on_cpu[0] == pytest.approx(on_cpu[1], rel=1e-9)
    both = profiler.open([tmp_path / "on", tmp_path / "off"])
    counts = both.sql("SELECT run, count(*) FROM usage_filled GROUP BY run ORDER BY run").fetchall()
    assert counts == [("off", len(full.usage)), ("on", len(sparse["usage_filled"].df()))]
    for name in ("processes", "peak_rss_bytes", "max_process_rss_bytes", "minor_faults"):
        first, second = (summary["total"][name] for summary in both.summaries())
        assert first == second, name


def test_losses_are_reported(tmp_path: Path) -> None:
    reader = run_script(
        tmp_path,
        """
        import time
        import profiler
        for _ in range(20_000):
            profiler.event("burst")
        # A mark has the number of those that were dropped before it.
        time.sleep(0.2)
        profiler.event("last")
        """,
    )
    assert sum(loss["count"] for loss in losses(reader)) == 20_001 - len(rows(reader)) > 0


# Several runs


def test_many_runs(two: Path) -> None:
    paths = [str(two / "first"), str(two / "second")]
    for given in (two, two / "*", f"{two}/", f"{two}/*s*[dt]", paths, [Path(path) for path in paths]):
        reader = profiler.open(given)  # type: ignore[arg-type]
        assert sorted(reader.paths) == paths, given
    assert [row["run"] for row in rows(reader, "region") if row["op"] == "event"] == ["first", "second"]
    assert len(reader.usage) == sum(len(profiler.open(path).usage) for path in paths)
    counts = reader.sql("SELECT run, count(*) FROM usage GROUP BY ALL ORDER BY ALL").fetchall()
    assert counts == [(Path(path).name, len(profiler.open(path).usage)) for path in paths]
    # Regions have the same numbers in both runs, and each has the usage of its own run.
    regions = reader.regions()
    assert sorted(zip(regions["run"], regions["name"])) == sorted(
        (name, region) for name in ("first", "second") for region in ("work", name)
    )
    one = {path: profiler.open(path).regions().set_index("name")["oncpu_ns"]["work"] for path in paths}
    work = regions[regions["name"] == "work"].set_index("run")["oncpu_ns"]
    assert dict(work) == {Path(path).name: value for path, value in one.items()}
    processes = reader.processes()
    assert set(processes["run"]) == {"first", "second"} and len(processes) == len(reader["process"])
    assert reader.sql("SELECT hist_quantile([0, 0, 4], 0.5)").fetchall() == [(88.0,)]
    with pytest.raises(profiler.Error, match="2 runs are open"):
        reader.summary()
    assert [summary["labels"]["name"] for summary in reader.summaries()] == ["first", "second"]


def test_a_name_with_quotes_and_brackets(two: Path, tmp_path: Path) -> None:
    odd = tmp_path / "it's [1] * run"
    shutil.copytree(two / "first", odd)
    reader = profiler.open(odd)
    assert ordered(rows(reader, "usage")) == ordered(rows(profiler.open(two / "first"), "usage"))
    assert len(reader.processes()) == len(reader["process"])
    assert len(profiler.open([odd, two / "second"]).regions()) == 4


def check_remote(reader: Reader, two: Path) -> None:
    local = profiler.open(two)
    for table in ("usage", "process", "region", "process_region", "process_usage", "gpu"):
        assert ordered(rows(reader, table)) == ordered(rows(local, table)), table
        assert [column.name for column in reader[table].columns] == [column.name for column in local[table].columns]
    expected = ordered(reader.usage.arrow().to_pylist())
    assert ordered(reader.usage.pl().to_dicts()) == ordered(reader.usage.lazy().collect().to_dicts()) == expected
    query = "SELECT run, name, oncpu_ns FROM process_region ORDER BY ALL"
    assert reader.sql(query).fetchall() == local.sql(query).fetchall()
    with pytest.raises(profiler.Error, match="reads local runs only"):
        reader.summaries()


def test_file_systems_of_fsspec(two: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(f"{two}/first", "/data/cluster=a/day=1/first", recursive=True)
    memory.put(f"{two}/second", "/data/cluster=b/day=1/second", recursive=True)
    try:
        check_remote(profiler.open("memory://data/cluster=*/day=1/*"), two)
        check_remote(profiler.open("/data/cluster=*/*/*", filesystem=memory), two)
        mixed = profiler.open(["memory://data/cluster=a/day=1/first", two / "second"])
        assert ordered(rows(mixed, "usage")) == ordered(rows(profiler.open(two), "usage"))
        assert profiler.open("memory://data/cluster=a/day=1/first").paths == ["/data/cluster=a/day=1/first"]
        with pytest.raises(profiler.Error, match="no such run"):
            profiler.open("memory://data/cluster=c/*")
    finally:
        memory.rm("/data", recursive=True)


def test_directories_named_like_partitions(two: Path, tmp_path: Path) -> None:
    """As Hydra and MLflow make them: neither new columns nor other values."""
    below = tmp_path / "sweep/lr=0.1/pid=7/device=gpu0/host=other,run=x"
    below.parent.mkdir(parents=True)
    shutil.copytree(two, below)
    for given, plain in ((below, two), (below / "first", two / "first")):
        reader, expected = profiler.open(given), profiler.open(plain)
        for name in ("usage", "process", "gpu", "process_usage", "process_region", "process_cpu"):
            assert reader[name].columns == expected[name].columns
            assert ordered(rows(reader, name)) == ordered(rows(expected, name)), name
        assert ordered(reader.usage.lazy().collect().to_dicts()) == ordered(rows(expected, "usage"))
        assert {row["host"] for row in rows(reader, "usage")} == {expected.metadata[0]["hostname"]}


def test_64_hosts(two: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(two / "first", run)
    metadata = json.loads((run / "run.json").read_text())
    names = [f"node{number:02}" for number in range(64)]
    for name in names:
        (run / f"run.{name}.json").write_text(json.dumps({**metadata, "hostname": name}))
        for host in glob.glob(f"{run}/*/host={metadata['hostname']}"):
            # Hard links: the tables of 64 hosts have thousands of files.
            shutil.copytree(host, host.replace(metadata["hostname"], name), copy_function=os.link)
    (run / "run.json").unlink()
    for host in glob.glob(f"{run}/*/host={metadata['hostname']}"):
        shutil.rmtree(host)
    reader, one = profiler.open(run), profiler.open(two / "first")
    assert sorted(host["hostname"] for host in reader.metadata) == names
    for table in ("usage", "process", "process_region", "process_usage"):
        expected = one[table].arrow()
        found = reader[table].arrow()
        assert found.num_rows == 64 * expected.num_rows > 0
        assert set(found.column("host").to_pylist()) == set(names)
    last = reader.usage.sql("FROM this WHERE host = 'node63'").to_arrow_table()
    assert ordered(last.drop(["host"]).to_pylist()) == ordered(one.usage.arrow().drop(["host"]).to_pylist())


def test_two_versions_of_the_schema(two: Path, tmp_path: Path) -> None:
    """A column that one of the runs does not have is null there, and one of another version is kept."""
    shutil.copytree(two, tmp_path / "runs")
    (part, *more) = glob.glob(f"{tmp_path}/runs/first/usage/host=*/part-*.parquet")
    assert not more
    before = pyarrow.parquet.ParquetFile(part).read()
    older = before.drop(["sockets"]).append_column("of_old", before.column("pid"))
    pyarrow.parquet.write_table(older, part)
    path = tmp_path / "runs/first/run.json"
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({**metadata, "schema_version": metadata["schema_version"] - 1}))
    views = tmp_path / "runs/first/views.sql"
    views.write_text("".join(line for line in views.open() if '"usage"."sockets"' not in line))
    usage = profiler.open(tmp_path / "runs").usage
    for found in (usage.arrow().to_pylist(), usage.lazy().collect().to_dicts(), usage.sql("FROM this").pl().to_dicts()):
        old = [row for row in found if row["run"] == "first"]
        new = [row for row in found if row["run"] == "second"]
        assert len(old) == before.num_rows and len(new) > 0
        assert {row["sockets"] for row in old} == {None} != {row["sockets"] for row in new}
        assert {row["of_old"] for row in new} == {None} and [row["of_old"] for row in old] == [row["pid"] for row in old]


def test_export(example: Reader, tmp_path: Path) -> None:
    output = tmp_path / "usage.csv"
    example.export("csv", str(output), table="usage")
    assert len(output.read_text().splitlines()) == len(example.usage) + 1
    with pytest.raises(profiler.Error, match="--force"):
        example.export("csv", str(output), table="usage")
    example.export("csv", str(output), table="region", force=True)
    assert len(output.read_text().splitlines()) == len(example.region) + 1



def test_s3(two: Path, bucket: str) -> None:
    import s3fs

    options = {"client_kwargs": {"endpoint_url": bucket, "region_name": "eu-west-1"}}
    files = s3fs.S3FileSystem(**options)
    files.mkdir("bucket")
    for name in ("first", "second"):
        files.put(f"{two}/{name}", f"bucket/profiles/{name}", recursive=True)
    check_remote(profiler.open("s3://bucket/profiles", **options), two)
    check_remote(profiler.open("s3://bucket/profiles/*", filesystem=files), two)


# Histograms


def test_percentiles_of_known_buckets() -> None:
    # The documented edges: below 64 ns, then 64, 80, 96, 112, 128, 160 ns and so on.
    assert [histograms.edge(bucket) for bucket in range(8)] == [0, 64, 80, 96, 112, 128, 160, 192]
    one = Histogram([10, 0, 80, 9, 1], sum_ns=9000, max_ns=120)
    assert (one.count, len(one), one.mean) == (100, 100, 90.0)
    assert [one.percentile(p) for p in (0, 10, 11, 50, 90, 91, 99, 100)] == [32, 32, 88, 88, 88, 104, 104, 120]
    assert one.median == 88 and Histogram([1], max_ns=20).percentile(99) == 20
    assert Histogram([0] * 136 + [1]).percentile(50) == histograms.edge(136)
    empty = Histogram([])
    assert (empty.percentile(50), empty.mean, empty.median, repr(empty)) == (None, None, None, "Histogram(empty)")
    with pytest.raises(ValueError):
        one.percentile(101)


def test_merge_is_the_sum() -> None:
    left, right = Histogram([1, 2], sum_ns=100, max_ns=70), Histogram([0, 1, 5], sum_ns=500, max_ns=90)
    assert left + right == histograms.merge([right, left]) == Histogram([1, 3, 5], sum_ns=600, max_ns=90)
    assert (left + Histogram([1])).sum_ns is None and left != right and left != [1, 2]
    assert histograms.merge([]) == Histogram([], sum_ns=0, max_ns=0)


def test_percentiles_are_those_of_views_sql(example: Reader) -> None:
    generator = random.Random(1)
    for _ in range(20):
        buckets = [generator.choice([0, 0, 1, 5, 10_000]) for _ in range(generator.randrange(1, 138))] + [1]
        for quantile in (0, 0.25, 0.5, 0.75, 1):
            (expected,) = example.sql(f"SELECT hist_quantile({buckets}, {quantile})").fetchall()[0]
            assert Histogram(buckets).percentile(quantile * 100) == expected, (buckets, quantile)


def test_histograms_of_rows(example: Reader) -> None:
    latencies = example.latencies()
    assert len(latencies) >= 4
    for row in latencies.to_dict("records"):
        found = example.latency.histogram(pid=row["pid"], kind=row["kind"])
        assert (found.count, found.mean, found.max_ns) == (row["count"], row["mean_ns"], row["max_ns"])
        assert [found.percentile(p) for p in (50, 90, 99)] == [row[f"p{p}_ns"] for p in (50, 90, 99)]
    everything = example.latency.histogram(kind="runqueue")
    parts = [row for row in rows(example, "latency", kind="runqueue")]
    assert everything.count == sum(row["count"] for row in parts) == sum(sum(row["buckets"]) for row in parts)
    assert everything.sum_ns == sum(row["sum_ns"] for row in parts)
    with pytest.raises(profiler.Error, match="usage has no histograms"):
        example.usage.histogram()
    with pytest.raises(profiler.Error, match="latency has no column 'nosuch'"):
        example.latency.histogram(nosuch=1)


# Plots


def test_plots(example: Reader, two: Path) -> None:
    from matplotlib import image
    from matplotlib.dates import num2date

    figure: Any = example.timeline.plot()
    labels = [axes.get_ylabel() for axes in figure.axes]
    assert labels[:3] == ["%", "MiB", "MiB/s"]
    points = sorted(rows(example, "timeline"), key=lambda row: row["ts"])
    for name, column, factor in [("s/s", "target_runqueue_ns", 1.0), ("/s", "target_minor_faults", 1e9)]:
        figure = example.timeline.plot(column)
        (axes,) = figure.axes
        (line,) = axes.lines
        assert (axes.get_ylabel(), line.get_label()) == (name, column)
        assert list(line.get_ydata()) == pytest.approx([row[column] / row["interval_ns"] * factor for row in points])
        assert max(line.get_ydata()) > 0
    times = [num2date(line.convert_xunits(x)).timestamp() for x in line.get_xdata()]
    assert times == pytest.approx([row["ts"].timestamp() for row in points])

    figure = profiler.open(two).system.plot("memory_used", "user_ns")
    memory, cpu = figure.axes
    assert (memory.get_ylabel(), cpu.get_ylabel()) == ("MiB", "s/s")
    assert len(memory.lines) == 2  # One for each run.
    figure.savefig(two / "notes/plot.png")
    assert image.imread(two / "notes/plot.png").shape[2] == 4
    for table, names, message in [
        ("timeline", ["nosuch"], "no column 'nosuch'"),
        ("system", [], "needs names of columns"),
        ("process_cpu", ["oncpu_s"], "has no time"),
        ("gpu", ["utilization"], "no values to plot"),
        ("cpu", ["user_ns"], "several rows at a time"),
        ("process", ["comm"], "'comm' is not a number"),
    ]:
        with pytest.raises(profiler.Error, match=message):
            example[table].plot(*names)


# Faults


def one_line(error: Any) -> str:
    text = str(error.value)
    assert "\n" not in text.strip() and text
    return text


def test_damaged_files(example: Reader, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        shutil.copytree(example.paths[0], tmp_path / name)
        return tmp_path / name

    for number, text in enumerate(["", "{", "[]", '"text"']):
        run = copy(f"json{number}")
        (run / "run.json").write_text(text)
        with pytest.raises(profiler.Error) as error:
            profiler.open(run)
        assert f"{run}/run.json: damaged" in one_line(error)
    for number, text in enumerate(["{", "[]", '{"tables": [{}]}']):
        run = copy(f"schema{number}")
        (run / "schema.json").write_text(text)
        with pytest.raises(profiler.Error) as error:
            _ = profiler.open(run).tables
        assert f"{run}/schema.json: damaged" in one_line(error)

    run = copy("parquet")
    (part,) = glob.glob(f"{run}/usage/host=*/part-*.parquet")
    content = Path(part).read_bytes()
    for damaged in (content[: len(content) // 2], b"", b"PAR1" + bytes(len(content) - 8) + b"PAR1"):
        Path(part).write_bytes(damaged)
        reader = profiler.open(run)
        reads: list[Any] = [reader.usage.arrow, reader.usage.df, reader.usage.pl, lambda reader=reader: reader.sql("FROM usage")]
        for read in reads:
            with pytest.raises(profiler.Error) as error:
                read()
            assert "damaged" in one_line(error) and str(run) in one_line(error)
        assert ordered(rows(reader, "sched")) == ordered(rows(example, "sched"))
    # A valid footer, and pages that are not.
    Path(part).write_bytes(b"PAR1" + b"\xff" * 2000 + content[2004:])
    reader = profiler.open(run)
    for view in ("usage", "process_usage"):
        with pytest.raises(profiler.Error) as error:
            reader[view].arrow()
        assert "damaged" in one_line(error)


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_other_kinds_of_files_are_refused(example: Reader, tmp_path: Path, kind: str) -> None:
    names = ["run.json", "compacted.json", "schema.json", "views.sql", "usage/host=*/part-00000.parquet"]
    for number, name in enumerate(names):
        run = tmp_path / str(number)
        shutil.copytree(example.paths[0], run)
        (path,) = map(Path, glob.glob(f"{run}/{name}") or [f"{run}/{name}"])
        moved = tmp_path / f"moved{number}"
        if path.exists():
            path.rename(moved)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "link":
            path.symlink_to(moved)
        else:
            path.mkdir()
        with pytest.raises(profiler.Error) as error:
            reader = profiler.open(run)
            assert reader.tables
            reader.sql("FROM usage")
        assert f"{path}: {'a link' if kind == 'link' else 'not a regular file'}" in one_line(error)
        # views.sql describes the tables as well.
        if name == "schema.json":
            assert fleet.open_dataset(str(tmp_path)).sessions["run"].to_pylist() == [str(number)]
        else:
            with pytest.raises(profiler.Error, match=path.name):
                fleet.open_dataset(str(tmp_path))
        shutil.rmtree(run)


def test_not_a_run(tmp_path: Path, two: Path) -> None:
    for path in (tmp_path / "nosuch", tmp_path / "*"):
        with pytest.raises(profiler.Error, match="no such run"):
            profiler.open(path)
    for path in (tmp_path, two / "notes"):
        with pytest.raises(profiler.Error, match="not the directory of a run"):
            profiler.open(path)
    with pytest.raises(profiler.Error, match="no table 'nosuch'; there are .*usage"):
        profiler.open(two)["nosuch"]
    with pytest.raises(AttributeError, match="no table 'nosuch'"):
        _ = profiler.open(two).nosuch
    with pytest.raises(profiler.Error, match="process_usage is a view"):
        profiler.open(two)["process_usage"].dataset()
    command = [str(BINARY), "summary", str(tmp_path)]
    assert subprocess.run(command, capture_output=True).returncode == 3


def test_runs_that_are_not_complete_warn(tmp_path: Path) -> None:
    with profiler.run("50ms", str(tmp_path), run_id="live", checkpoint="100ms") as p:
        with pytest.warns(UserWarning, match="live: not finished"):
            reader = profiler.open(p.path)
        assert reader.metadata[0]["state"] == "running"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reader = profiler.open(p.path)
    path = tmp_path / "live/run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": "incomplete"}))
    with pytest.warns(UserWarning, match="live: rows were lost"):
        profiler.open(p.path)


def test_run_without_rows(tmp_path: Path) -> None:
    """Until the first checkpoint, a run has no rows and all tables."""
    with profiler.run("50ms", str(tmp_path), run_id="live", checkpoint="1h") as p:
        with pytest.warns(UserWarning, match="live: not finished"):
            reader = p.open()
        for table in reader:
            assert len(table) == 0 or table.name == "run", table.name
        assert reader.usage.df().empty and reader.processes().empty and reader.regions().empty
        assert reader.usage.pl().columns == reader.usage.lazy().collect().columns == reader.usage.df().columns.to_list()
        assert reader.sql("SELECT sum(oncpu_s) FROM process_cpu").fetchall() == [(None,)]
        assert len(reader.latency.histogram(kind="runqueue")) == 0
        with pytest.raises(profiler.Error, match="timeline has no values to plot"):
            reader.timeline.plot()
    assert len(p.open().usage) > 0


def test_messages_without_optional_packages(two: Path) -> None:
    # None in sys.modules makes the import fail.
    program = """
        import sys
        sys.modules[sys.argv[2]] = None
        import profiler
        try:
            eval(sys.argv[3], {"r": profiler.open(sys.argv[1])})
        except profiler.Error as error:
            print(error)
        """
    for package, read, extra in [
        ("duckdb", "r.processes()", "duckdb"),
        ("pandas", "r.usage.df()", "pandas"),
        ("polars", "r.usage.pl()", "polars"),
        ("polars", "r.usage.lazy()", "polars"),
        ("pyarrow", "r.usage.df()", "pandas"),
        ("pyarrow", "r.usage.arrow()", "pandas"),
        ("matplotlib", "r.timeline.plot()", "plot"),
    ]:
        command = [sys.executable, "-c", textwrap.dedent(program), str(two / "first"), package, read]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout.strip().endswith(f"pip install node-profiler[{extra}]"), (package, done)
