"""`profiler upload` to an S3 server, and the stored runs with the package."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from conftest import BINARY
from test_reader import check_remote

import profiler


class Proxy:
    """Forwards connections to the server, and notes the requests. `cut` decides after how many bytes of a
    request a connection is cut; None: never, 0: refused."""

    def __init__(self, server: str, cut: Callable[[], int | None] = lambda: None, pause: float = 0) -> None:
        parts = urlsplit(server)
        self.target, self.cut, self.pause = (parts.hostname, parts.port), cut, pause
        self.requests: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "http://127.0.0.1:{}".format(self.listener.getsockname()[1])
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.forward, args=(client,), daemon=True).start()

    def forward(self, client: socket.socket) -> None:
        limit = self.cut()
        if limit == 0:
            client.close()
            return
        server = socket.create_connection(self.target)
        threading.Thread(target=self.copy, args=(server, client), daemon=True).start()
        self.copy(client, server, limit, note=True)

    def copy(self, source: socket.socket, to: socket.socket, limit: int | None = None, note: bool = False) -> None:
        seen = 0
        try:
            while data := source.recv(1 << 16):
                if note and data.split(b" ", 1)[0] in (b"PUT", b"HEAD"):
                    self.requests.append(data.split(b"?", 1)[0].decode())
                    time.sleep(self.pause)
                seen += len(data)
                if limit is not None and seen > limit:
                    break
                to.sendall(data)
        except OSError:
            pass
        for end in (source, to):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def of(self, method: str) -> list[str]:
        return [request.split(" ", 1)[1] for request in self.requests if request.startswith(method)]


def start(dataset: Path, server: str, to: str = "s3://bucket/site/runs", **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "AWS_ENDPOINT_URL": server, "AWS_REGION": "eu-west-1", **more}
    command = [str(BINARY), "upload", str(dataset), "--to", to]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def upload(dataset: Path, server: str, *arguments: str, **more: str) -> tuple[int | None, str]:
    process = start(dataset, server, *arguments, **more)
    output = "".join(process.communicate())
    return process.returncode, output


def stored(client: Any) -> dict[str, bytes]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket")
    keys = [found["Key"] for page in pages for found in page.get("Contents", [])]
    return {key: client.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys}


def local(dataset: Path) -> dict[str, bytes]:
    """Files of runs, beside them, and compacted files. Other tests write into `notes`, which is no run."""
    files = (path for path in dataset.glob("*/**/*") if path.is_file() and path.name != ".lock")
    of_runs = (path for path in files if path.relative_to(dataset).parts[0] != "notes")
    beside = (dataset / "schema.json", dataset / "README.md")
    return {f"site/runs/{path.relative_to(dataset)}": path.read_bytes() for path in (*of_runs, *beside)}


def test_stored_runs_are_read(two: Path, bucket: str, client: Any) -> None:
    proxy = Proxy(bucket)
    code, output = upload(two, proxy.address)
    assert code == 0 and "2 runs" in output and "left alone: notes" in output, output
    assert stored(client) == local(two)
    order = [path.removeprefix("/bucket/site/runs/") for path in proxy.of("PUT")]
    assert len(order) == len(local(two))
    for run in ("first", "second"):
        of_run = [path for path in order if path.startswith(f"{run}/")]
        assert of_run[-1] == f"{run}/run.json"
    options = {"client_kwargs": {"endpoint_url": bucket, "region_name": "eu-west-1"}}
    check_remote(profiler.open("s3://bucket/site/runs", **options), two)
    # Nothing is sent again; a complete run takes a list and a request for each of its last files.
    proxy.requests.clear()
    code, output = upload(two, proxy.address)
    assert code == 0 and "0 files (0 B) sent" in output, output
    assert not proxy.of("PUT") and len(proxy.of("HEAD")) == 6


def test_compacted_rows_are_stored(two: Path, bucket: str, client: Any, tmp_path: Path) -> None:
    dataset = tmp_path / "profiles"
    shutil.copytree(two, dataset)
    assert upload(dataset, bucket)[0] == 0
    # A reader of the same process, whose file system keeps the list of the files.
    options = {"client_kwargs": {"endpoint_url": bucket, "region_name": "eu-west-1"}}
    check_remote(profiler.open("s3://bucket/site/runs", **options), two)
    subprocess.run([str(BINARY), "compact", str(dataset)], check=True, stdout=subprocess.DEVNULL)
    code, output = upload(dataset, bucket)
    assert code == 0 and "objects removed" in output, output
    assert stored(client) == local(dataset)
    check_remote(profiler.open("s3://bucket/site/runs", **options), two)
    # Rows of another host of a run are not removed.
    other = "site/runs/first/usage/host=other/part-00000.parquet"
    client.put_object(Bucket="bucket", Key=other, Body=b"")
    (dataset / "first/compacted.json").write_text((dataset / "first/compacted.json").read_text() + "\n")
    assert upload(dataset, bucket)[0] == 0
    assert stored(client).keys() - local(dataset).keys() == {other}


def test_other_kinds_of_files_are_not_sent(two: Path, bucket: str, client: Any, tmp_path: Path) -> None:
    dataset = tmp_path / "profiles"
    shutil.copytree(two, dataset)
    views = dataset / "first/views.sql"
    views.unlink()
    os.mkfifo(views)
    code, output = upload(dataset, bucket)
    assert code == 0 and "left out: first/views.sql: not a regular file" in output, output
    assert stored(client) == local(dataset)
    # Rows would be missing.
    (part,) = (dataset / "second/usage").glob("*/part-00000.parquet")
    part.rename(tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    (dataset / "second/run.json").touch()
    code, output = upload(dataset, bucket, "s3://bucket/again")
    assert code == 5 and f"{part.relative_to(dataset)}: a link" in output, output
    assert "again/second/run.json" not in stored(client)


def test_cut_connections_are_repeated(two: Path, bucket: str, client: Any) -> None:
    # The first request is answered; then every other connection is refused or cut within a file.
    fates = iter([None, *[0, None, 3000, None] * 1000])
    proxy = Proxy(bucket, lambda: next(fates))
    code, output = upload(two, proxy.address)
    assert code == 0 and "repeated for up to 10 min" in output, output
    assert stored(client) == local(two)


def test_killed_upload_is_continued(two: Path, bucket: str, client: Any) -> None:
    proxy = Proxy(bucket, pause=0.05)
    process = start(two, proxy.address)
    while len(proxy.of("PUT")) < 8:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    # The server completes requests that are on their way.
    before: Any = None
    while before != (before := stored(client)):
        time.sleep(0.5)
    assert before and "site/runs/second/run.json" not in before
    code, output = upload(two, bucket)
    assert code == 0, output
    assert f"{len(before)} files were there" in output, output
    assert stored(client) == local(two)


def test_errors(two: Path, bucket: str, client: Any, tmp_path: Path) -> None:
    code, output = upload(two, bucket, "s3://missing/site")
    assert code == 5 and "NoSuchBucket" in output, output
    code, output = upload(two, "http://127.0.0.1:1")
    assert code == 5 and "s3://bucket/site/runs/" in output and "127.0.0.1:1" in output, output
    nothing = {"AWS_ACCESS_KEY_ID": "", "HOME": str(tmp_path)}
    code, output = upload(two, bucket, **nothing)
    assert code == 2 and "AWS_ACCESS_KEY_ID" in output, output
    code, output = upload(two, bucket, "bucket/site")
    assert code == 2 and "s3://BUCKET/PREFIX" in output, output
    code, output = upload(tmp_path / "none", bucket)
    assert code == 3 and "none" in output, output
    credentials = tmp_path / ".aws"
    credentials.mkdir()
    (credentials / "credentials").write_text("[default]\naws_access_key_id = test\naws_secret_access_key = test\n")
    assert upload(two, bucket, **nothing)[0] == 0


def test_running_runs_are_left_alone(bucket: str, client: Any, tmp_path: Path) -> None:
    command = [str(BINARY), "run", "-q", "-i", "100ms", "--out", str(tmp_path), "--run-id", "live", "--", "sleep", "30"]
    process = subprocess.Popen(command)
    try:
        while not (tmp_path / "live/run.json").exists():
            time.sleep(0.05)
        code, output = upload(tmp_path, bucket)
        assert code == 0 and "is being profiled" in output, output
        assert not stored(client)
        assert upload(tmp_path / "live", bucket)[0] == 5
    finally:
        process.terminate()
        process.wait()
    assert upload(tmp_path / "live", bucket)[0] == 0
    assert stored(client) == local(tmp_path)
