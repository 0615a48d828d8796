"""`profiler.run()` in this process, and in processes of other kinds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BINARY, away, losses, rows

import profiler
from profiler import _binary, _channel

SOURCES = Path(__file__).parent.parent / "src"


def burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def script(source: str, *arguments: str, **variables: str) -> str:
    """The stdout of a script."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **variables}
    command = [sys.executable, "-c", textwrap.dedent(source), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_profiles_this_process_and_its_children(tmp_path: Path) -> None:
    before = time.process_time()
    with profiler.run(interval="50ms", out=str(tmp_path), label={"env": "test", "campaign": "7"}) as p:
        assert profiler.active()
        inside = time.process_time()
        with profiler.region("burn"):
            burn(0.5)
        for code in range(4):
            subprocess.run(["sh", "-c", f"exit {code}"])
        inside = time.process_time() - inside
    outside = time.process_time() - before
    assert not profiler.active() and _channel.VARIABLE not in os.environ

    reader = p.open()
    assert reader.paths == [p.path] and Path(p.path).parent == tmp_path
    (host,) = reader.metadata
    assert host["state"] == "complete" and host["config"]["labels"] == {"env": "test", "campaign": "7"}
    own = {"pid": os.getpid()}
    # The clocks of the scheduler and of the process differ by interrupts.
    used = sum(row["user_ns"] + row["system_ns"] for row in rows(reader, "usage", **own)) / 1e9
    assert inside * 0.98 <= used <= outside * 1.02 + 0.01, (inside, used, outside)
    (region,) = rows(reader, "region_usage", name="burn")
    # The reading at its end can be after some of the children.
    late = max(region["end_offset_ns"], 0) / 1e9
    assert 0.49 - away(reader, "burn") <= (region["user_ns"] + region["system_ns"]) / 1e9 <= inside + late
    children = rows(reader, "process", ppid=os.getpid(), comm="sh")
    assert sorted(row["exit_code"] for row in children) == [0, 1, 2, 3]
    summary = p.summary()
    assert summary["labels"] == {"env": "test", "campaign": "7"} and summary["run_id"] == Path(p.path).name
    # The children took some milliseconds.
    assert used * 0.99 <= summary["total"]["cpu_s"] <= used + 0.2
    assert summary["regions"][0]["name"] == "burn" and summary["total"]["failed_processes"] == 3


def test_environment_that_another_thread_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "value")
    names = [f"OF_ANOTHER_THREAD_{number}" for number in range(500)]
    done = threading.Event()

    def change() -> None:
        while not done.is_set():
            for name in names:
                os.environ[name] = "x"
            for name in names:
                del os.environ[name]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(200):
            assert _binary.environment()["KEPT"] == "value"
    finally:
        done.set()
        thread.join()


def test_consecutive_and_nested_runs(tmp_path: Path) -> None:
    with profiler.run("100ms", str(tmp_path), run_id="outer") as outer:
        socket = os.environ[_channel.VARIABLE]
        profiler.event("before")
        with profiler.run("100ms", str(tmp_path)) as inner:
            profiler.event("inside")
        assert os.environ[_channel.VARIABLE] == socket
        profiler.event("after")
    with profiler.run("100ms", str(tmp_path)) as next_one:
        profiler.event("next")
    names = [[row["name"] for row in rows(run.open())] for run in (outer, inner, next_one)]
    # Marks go to the innermost run.
    assert names == [["before", "after"], ["inside"], ["next"]]


def test_options_become_arguments() -> None:
    from profiler._binary import options_of

    options = {"threads": True, "once": False, "duration": None, "source": ["+syscalls", "-gpu"], "label": {"a": 1}}
    assert options_of({**options, "max_age": "30d"}) == [
        b"--threads",
        b"--source=+syscalls,-gpu",
        b"--label",
        b"a=1",
        b"--max-age=30d",
    ]
    with pytest.raises(TypeError, match="'pid'"):
        profiler.run(pid=1)


def test_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failure(**options: Any) -> str:
        with pytest.raises(profiler.Error) as caught:
            profiler.run(**{"out": str(tmp_path), **options}).start()
        text = str(caught.value)
        assert "\n" not in text and not profiler.active()
        return text

    # Jupyter sets it.
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    assert failure(interval="1us").startswith("invalid value '1us'")
    assert "`1us` is not between 1ms and 1h" in failure(interval="1us")
    assert "--no-such-option" in failure(no_such_option="x")
    assert "nosuch" in failure(source="nosuch")
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in failure(out=str(tmp_path / "file"))
    monkeypatch.setenv("PROFILER", "/nonexistent/profiler")
    assert failure() == "PROFILER=/nonexistent/profiler: not an executable file"
    monkeypatch.delenv("PROFILER")
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nonexistent")
    assert "neither in PATH nor in the environment variable PROFILER" in failure()
    monkeypatch.setenv("PROFILER", sys.executable)
    assert failure() == f"{sys.executable}: another program of this name; set PROFILER to the path of profiler"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"#!/bin/sh\necho profiler 0.0.9\n", "version 0.0.9, older than 0.1; install a newer one, or set PROFILER"),
        (b"#!/bin/sh\necho usage: profiler FILE >&2; exit 2\n", "another program of this name; set PROFILER"),
        (b"\x7fELF of another machine", "cannot be executed: Exec format error; set PROFILER"),
        (b"#!/bin/sh\necho profiler 12.0 later\necho more\nexit 7\n", ""),
    ],
)
def test_other_programs(content: bytes, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "profiler"
    program.write_bytes(content)
    program.chmod(0o755)
    monkeypatch.delenv("PROFILER")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nonexistent")
    with pytest.raises(profiler.Error) as caught:
        profiler.run(out=str(tmp_path / "out")).start()
    text = str(caught.value)
    assert text.startswith(f"{program}: {expected}") if expected else text == "profiler: exit code 7"
    assert "\n" not in text and not profiler.active()


def module(directory: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python -m profiler`."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **variables}
    command = [sys.executable, "-m", "profiler", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=directory)


def test_command_line_of_the_module(tmp_path: Path) -> None:
    program = "import sys, profiler\nwith profiler.region('work'): print(sys.argv[1:])\nsys.exit(3)\n"
    (tmp_path / "program.py").write_text(program)
    done = module(tmp_path, "-q", "-o", "runs", "--run-id", "r", "--", "program.py", "a", "--", "-b")
    assert (done.returncode, done.stdout) == (3, "['a', '--', '-b']\n"), done.stderr
    assert [row["name"] for row in rows(profiler.open(tmp_path / "runs/r"))] == ["work"]
    done = module(tmp_path, "-q", "-o", "runs", "--run-id", "m", "--", "-m", "program")
    assert (done.returncode, done.stdout) == (3, "[]\n"), done.stderr
    (run,) = rows(profiler.open(tmp_path / "runs/m"), "process")
    assert run["cmdline"].endswith(" -m program") and run["exit_code"] == 3
    # Without options, all arguments are those of the program.
    done = module(tmp_path, "program.py", "-q", "--", "x")
    assert (done.returncode, done.stdout) == (3, "['-q', '--', 'x']\n")
    assert len(list((tmp_path / "profiles").glob("*/run.json"))) == 1

    done = module(tmp_path, "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: python -m profiler ")
    for wrong in ([], ["-q"], ["-q", "--"]):
        done = module(tmp_path, *wrong)
        assert done.returncode == 1 and done.stderr.endswith("error: no script\n")
    done = module(tmp_path, "program.py", PROFILER="/nonexistent")
    assert (done.returncode, done.stderr) == (1, "error: PROFILER=/nonexistent: not an executable file\n")


def test_exception_in_the_block_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError), profiler.run("100ms", str(tmp_path)) as p:
        with profiler.region("fails"):
            raise ValueError("wrong")
    (row,) = rows(p.open())
    assert row["status"] == "error" and p.open().metadata[0]["state"] == "complete"


def test_death_of_the_profiler(tmp_path: Path) -> None:
    with pytest.raises(profiler.Error, match="^the profiler was killed by signal 9; 100 marks at the end of the run were not stored$"):
        with profiler.run("100ms", str(tmp_path)) as p:
            assert p._process is not None
            p._process.kill()
            p._process.wait()
            for _ in range(100):
                profiler.event("to nobody")
            assert not profiler.active()
    # An exception of the program is more important.
    with pytest.raises(ValueError), pytest.warns(UserWarning), profiler.run("100ms", str(tmp_path)) as p:
        assert p._process is not None
        p._process.kill()
        raise ValueError


def test_forked_child_leaves_the_run_to_its_parent(tmp_path: Path) -> None:
    output = script(
        """
        import os, sys, profiler
        with profiler.run("100ms", sys.argv[1]) as p:
            child = os.fork()
            with profiler.region("child" if child == 0 else "parent"):
                pass
            if child:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                assert p._process.poll() is None
        if child:
            print(child, p.path)
        """,
        str(tmp_path),
    )
    child, path = output.split()
    found = {row["name"]: row["pid"] for row in rows(profiler.open(path))}
    assert sorted(found) == ["child", "parent"] and found["child"] == int(child) != found["parent"]


def test_program_that_exits_in_the_block(tmp_path: Path) -> None:
    program = "import os, sys, profiler; profiler.run('100ms', sys.argv[1], run_id='r').start(); os._exit(0)"
    script(program, str(tmp_path))
    deadline = time.monotonic() + 300
    while (state := profiler_state(tmp_path / "r")) == "running":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert state == "complete"


def profiler_state(run: Path) -> str:
    return str(json.loads((run / "run.json").read_text())["state"])


@pytest.fixture
def directory_of_nobody() -> Iterator[Path]:
    """A directory of user 65534 with a binary that this user can execute."""
    directory = Path(tempfile.mkdtemp())
    shutil.copy(str(BINARY), directory / "profiler")
    os.chown(directory, 65534, 65534)
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def service(directory_of_nobody: Path) -> Iterator[Path]:
    """The socket of a running service."""
    socket = directory_of_nobody / "socket"
    process = subprocess.Popen([str(BINARY), "serve", "--socket", str(socket)], stderr=subprocess.PIPE, text=True)
    with process:
        try:
            assert process.stderr and "serving" in process.stderr.readline()
            yield socket
        finally:
            process.terminate()
    assert process.returncode == 0


def test_without_privileges(directory_of_nobody: Path) -> None:
    """No service runs: the processes are read from /proc."""
    reader = profile_as_nobody(directory_of_nobody, PROFILER_SERVICE=str(directory_of_nobody / "none"))
    assert {row["sleep_ns"] for row in rows(reader, "sched")} == {None}


def test_by_a_service(directory_of_nobody: Path, service: Path) -> None:
    reader = profile_as_nobody(directory_of_nobody, PROFILER_SERVICE=str(service))
    assert None not in {row["sleep_ns"] for row in rows(reader, "sched")}
    assert not losses(reader)


def profile_as_nobody(directory: Path, **variables: str) -> Any:
    output = script(
        """
        import ctypes, json, os, subprocess, sys, time
        import profiler, profiler._session
        os.chdir(sys.argv[1])
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        # The change of the user hides a process from this user (PR_SET_DUMPABLE).
        assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0
        before = time.process_time()
        with profiler.run("50ms", "runs", run_id="r") as p:
            inside = time.process_time()
            with profiler.region("burn"):
                end = time.process_time() + 0.3
                while time.process_time() < end:
                    pass
            for _ in range(3):
                subprocess.run(["true"])
            inside = time.process_time() - inside
        outside = time.process_time() - before
        # Of the programs and of the profiler, which have all been waited for.
        children = os.times().children_user + os.times().children_system
        print(json.dumps([os.getpid(), inside, outside, children, p.summary()["total"]["cpu_s"]]))
        """,
        str(directory),
        PROFILER=str(directory / "profiler"),
        TMPDIR=str(directory),
        **variables,
    )
    pid, inside, outside, children, total = json.loads(output)
    run = directory / "runs/r"
    assert run.stat().st_uid == 65534
    reader = profiler.open(run)
    used, sampled = (
        sum(row["user_ns"] + row["system_ns"] for row in rows(reader, "usage", **of)) / 1e9
        for of in ({"pid": pid}, {})
    )
    assert inside * 0.98 <= used <= outside * 1.02 + 0.01, (inside, used, outside)
    assert used <= sampled <= total + 1e-6, (used, sampled, total)
    assert total <= (outside + children) * 1.02 + 0.05, (total, outside, children)
    assert [row["status"] for row in rows(reader, name="burn")] == ["finished"]
    assert len(rows(reader, "process", ppid=pid, comm="true")) == 3
    return reader
