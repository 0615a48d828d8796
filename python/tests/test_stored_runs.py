"""`profiler report`, `summary`, `compare`, `verify` and `export` of runs in S3 and on a web server."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BINARY
from test_upload import Proxy, stored, upload

Read = Callable[..., "subprocess.CompletedProcess[str]"]
S3 = "s3://bucket/site/runs"


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Read]:
    """Reads runs, and checks that no copy is left."""
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    copies = tmp_path / "copies"
    copies.mkdir()

    def read(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TMPDIR": str(copies), **more}
        command = [str(BINARY), *map(str, arguments)]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert not list(copies.iterdir()), done.stderr
        return done

    yield read


@pytest.fixture
def stored_runs(two: Path, bucket: str, client: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the server with two runs."""
    code, output = upload(two, bucket)
    assert code == 0, output
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket)
    return bucket


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(handler: Any) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield "http://127.0.0.1:{}".format(server.server_port)
    server.shutdown()
    server.server_close()


@pytest.fixture
def web(two: Path, tmp_path: Path) -> Iterator[str]:
    """A web server of the directory `served` with two runs."""
    shutil.copytree(two, tmp_path / "served")
    yield from serve(functools.partial(Quiet, directory=tmp_path / "served"))


def without_paths(text: str) -> Any:
    """A document without the names of the runs' directories."""
    document = json.loads(text)
    for run in document["runs"] if isinstance(document, dict) and "runs" in document else document:
        assert run.pop("path")
    return document


def check_equal(read: Read, local: Path, remote: str, tmp_path: Path) -> None:
    """All commands give the same for a run in a directory and on a server."""
    for command in ("summary", "verify"):
        here, there = (read(command, "--json", f"{place}/first") for place in (local, remote))
        assert here.returncode == there.returncode == 0, there.stderr
        assert without_paths(here.stdout) == without_paths(there.stdout)
    here, there = (read("compare", "--json", f"{place}/first", "--", f"{place}/second") for place in (local, remote))
    assert here.returncode == there.returncode == 0, there.stderr
    assert json.loads(here.stdout) == json.loads(there.stdout)
    reports = [read("report", "-o", "-", f"{place}/first") for place in (local, remote)]
    assert [report.returncode for report in reports] == [0, 0], reports[1].stderr
    assert "<html" in reports[0].stdout and reports[0].stdout == reports[1].stdout
    for name, place in (("here", local), ("there", remote)):
        done = read("export", "csv", f"{place}/first", f"{place}/second", "-o", tmp_path / name)
        assert done.returncode == 0, done.stderr
    exported = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("here", "there")]
    assert {"usage.csv", "run.csv"} <= exported[0].keys() and exported[0] == exported[1]


def test_runs_in_s3_are_read(stored_runs: str, two: Path, read: Read, tmp_path: Path) -> None:
    check_equal(read, two, S3, tmp_path)


def test_runs_on_a_web_server_are_read(web: str, two: Path, read: Read, tmp_path: Path) -> None:
    check_equal(read, two, web, tmp_path)


def test_compacted_runs_are_read(stored_runs: str, web: str, read: Read, tmp_path: Path) -> None:
    dataset = tmp_path / "served"
    subprocess.run([str(BINARY), "compact", str(dataset)], check=True, stdout=subprocess.DEVNULL)
    assert not list(dataset.glob("first/usage/host=*/*.parquet"))
    assert upload(dataset, stored_runs)[0] == 0
    for number, place in enumerate((S3, web)):
        directory = tmp_path / str(number)
        directory.mkdir()
        check_equal(read, dataset, place, directory)


def test_several_hosts_are_listed(stored_runs: str, client: Any, two: Path, read: Read) -> None:
    manifest = json.loads((two / "first/run.json").read_text())
    prefix = "site/runs/first/"
    for key, body in stored(client).items():
        host = f"host={manifest['hostname']}/"
        if key.startswith(prefix) and host in key:
            client.put_object(Bucket="bucket", Key=key.replace(host, "host=other/"), Body=body)
    other = json.dumps({**manifest, "hostname": "other"})
    client.put_object(Bucket="bucket", Key=f"{prefix}run.other.json", Body=other.encode())
    done = read("verify", "--json", f"{S3}/first")
    assert set(json.loads(done.stdout)[0]["hosts"]) == {manifest["hostname"], "other"}


def part_of(client: Any, table: str = "usage") -> str:
    return next(key for key in stored(client) if key.startswith(f"site/runs/first/{table}/"))


def test_damaged_and_missing_objects_are_named(stored_runs: str, client: Any, read: Read) -> None:
    key = part_of(client)
    found = client.get_object(Bucket="bucket", Key=key)
    body = bytearray(found["Body"].read())
    body[len(body) // 2] ^= 1
    client.put_object(Bucket="bucket", Key=key, Body=bytes(body), Metadata=found["Metadata"])
    name = key.removeprefix("site/runs/first/")
    done = read("verify", f"{S3}/first")
    assert done.returncode == 7 and f"{name}: damaged on the server" in done.stdout, done.stdout
    done = read("summary", f"{S3}/first")
    assert done.returncode == 0 and f"{name}: damaged" in done.stdout, done.stdout
    done = read("compare", f"{S3}/first", "--", f"{S3}/second")
    assert f"{name}: damaged" in done.stderr, done.stderr
    done = read("export", "csv", f"{S3}/first", "-o", "tables")
    assert done.returncode == 5 and f"{name}: damaged" in done.stderr, done.stderr
    client.delete_object(Bucket="bucket", Key=key)
    done = read("verify", f"{S3}/first")
    assert done.returncode == 7 and "0 rows of usage in parts" in done.stdout, done.stdout


def test_missing_files_of_a_web_server_are_named(web: str, read: Read, tmp_path: Path) -> None:
    (part,) = (tmp_path / "served/first").glob("usage/host=*/part-00000.parquet")
    # A gap in the numbers is none in the rows.
    part.rename(part.with_name("part-00002.parquet"))
    done = read("verify", f"{web}/first/")
    assert done.returncode == 0, done.stdout
    part.with_name("part-00002.parquet").unlink()
    done = read("verify", f"{web}/first/")
    name = part.parent.relative_to(tmp_path / "served/first")
    assert done.returncode == 7 and f"{name}: 0 of 1 Parquet files" in done.stdout, done.stdout


class ProxyOfReplies(Proxy):
    """Cuts replies instead of requests."""

    def copy(self, source: Any, to: Any, limit: int | None = None, note: bool = False) -> None:
        if not note and source.getpeername() == self.target:
            limit = self.cut()
        super().copy(source, to, limit if not note else None, note)


def test_cut_connections_are_repeated(stored_runs: str, read: Read) -> None:
    # Every other connection ends within the first object that it has.
    fates = iter([None, *[None, 700] * 1000])
    lock = threading.Lock()
    cuts = []

    def cut() -> int | None:
        with lock:
            fate = next(fates)
            cuts.append(fate)
            return fate

    proxy = ProxyOfReplies(stored_runs)
    proxy.cut = cut
    done = read("verify", f"{S3}/first", AWS_ENDPOINT_URL=proxy.address)
    assert done.returncode == 0, done.stderr
    assert 700 in cuts and "repeated for up to 10 min" in done.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"hostname": "../../../evil"},
        {"tables": {"../../../evil": {"parts": 1}}},
        {"tables": {"/tmp/evil": {"parts": 1}}},
        {"tables": {"usage": {"parts": 2**63}}},
    ],
)
def test_names_that_lead_elsewhere_are_refused(web: str, read: Read, tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "served/first/run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    done = read("verify", f"{web}/first")
    assert done.returncode == 3 and f"{web}/first/run.json: " in done.stderr, done.stderr
    path.write_text("{}")
    compacted = {"tables": {"usage": {"a": {"files": ["../../evil.parquet"]}}}}
    path.with_name("compacted.json").write_text(json.dumps(compacted))
    path.write_text(json.dumps({"hostname": "a"}))
    done = read("verify", f"{web}/first")
    assert done.returncode == 3 and "not the name of a compacted file" in done.stderr, done.stderr


def test_errors_name_the_remedy(stored_runs: str, web: str, read: Read, tmp_path: Path) -> None:
    def check(code: int, expected: str, *arguments: str, **more: str) -> None:
        done = read("summary", *arguments, **more)
        (line,) = done.stderr.splitlines()
        assert done.returncode == code and line.startswith("profiler: ") and expected in line, done.stderr

    check(2, "set AWS_ACCESS_KEY_ID", f"{S3}/first", AWS_ACCESS_KEY_ID="", HOME=str(tmp_path))
    check(2, "s3://BUCKET/PREFIX/RUN", "s3://bucket")
    check(2, "files of many", f"{S3}/compacted")
    check(3, f"{S3}/none/run.json: no such object", f"{S3}/none")
    check(3, f"{web}/none/run.json: no such object", f"{web}/none")
    check(5, "NoSuchBucket", "s3://missing/first")
    check(5, "127.0.0.1:1", f"{S3}/first", AWS_ENDPOINT_URL="http://127.0.0.1:1")
    check(5, "set TMPDIR", f"{web}/first", TMPDIR=str(tmp_path / "none"))


def test_refusals_name_the_remedy(bucket: str, read: Read) -> None:
    class Refusing(Quiet):
        def do_GET(self) -> None:
            if self.path.startswith("/bucket/"):
                self.send_response(301)
                self.send_header("x-amz-bucket-region", "us-west-2")
                body = b"<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message></Error>"
            else:
                self.send_response(403)
                body = b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    for address in serve(Refusing):
        done = read("summary", f"{S3}/first", AWS_ENDPOINT_URL=address)
        assert done.returncode == 5 and "set AWS_REGION=us-west-2" in done.stderr, done.stderr
        done = read("summary", "s3://private/first", AWS_ENDPOINT_URL=address)
        assert done.returncode == 5 and "s3:GetObject" in done.stderr, done.stderr
        done = read("summary", f"{address}/private/first")
        assert done.returncode == 5 and "must permit" in done.stderr, done.stderr


def test_lists_are_not_needed(stored_runs: str, two: Path, read: Read) -> None:
    """Credentials that permit to read objects only."""
    class NoList(Quiet):
        def do_GET(self) -> None:
            if "list-type" in self.path:
                self.send_error(403)
                return
            try:
                with urllib.request.urlopen(stored_runs + self.path) as reply:
                    code, headers, body = 200, dict(reply.headers), reply.read()
            except urllib.error.HTTPError:
                code, headers, body = 403, {}, b""
            self.send_response(code)
            sent = {"Content-Length": str(len(body)), "x-amz-meta-sha256": headers.get("x-amz-meta-sha256", "")}
            for name, value in sent.items():
                if value:
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

    here = read("verify", "--json", two / "first")
    for address in serve(NoList):
        there = read("verify", "--json", f"{S3}/first", AWS_ENDPOINT_URL=address)
        assert there.returncode == 0, there.stderr
        assert without_paths(here.stdout) == without_paths(there.stdout)


def test_interrupted_copies_are_removed(tmp_path: Path) -> None:
    asked = threading.Event()

    class Slow(Quiet):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.write(b"{")
            asked.set()
            time.sleep(2)

    copies = tmp_path / "copies"
    copies.mkdir()
    for address in serve(Slow):
        environment = {**os.environ, "TMPDIR": str(copies)}
        process = subprocess.Popen([str(BINARY), "summary", f"{address}/first"], env=environment)
        assert asked.wait(300)
        (copy,) = copies.iterdir()
        assert copy.stat().st_mode & 0o777 == 0o700
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert not list(copies.iterdir())
