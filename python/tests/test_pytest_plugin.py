"""`pytest --node-profile`, by the real pytest."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pyarrow.dataset  # noqa: F401 (pytester removes what a test has imported, and numpy can be loaded once)
import pytest
from conftest import away, rows

import profiler

TESTS = """
    import pytest, subprocess, time

    def burn(seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    def test_long():
        burn(0.3)

    @pytest.mark.parametrize("n", [1, 2])
    def test_shorter(n):
        burn(0.05 * n)

    def test_child():
        subprocess.run(["sh", "-c", "while :; do i=$((i+1)); [ $i = 100000 ] && exit; done"])

    def test_fails():
        time.sleep(0.02)
        assert False
"""


def test_regions_and_tables(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    result = pytester.runpytest_subprocess("--node-profile", "--node-profile-interval=100ms", "--node-profile-out=out")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*= profile =*", "most CPU time:", "*test_it.py::test_long", "run: out/*"])
    (run,) = (path for path in (pytester.path / "out").iterdir() if path.is_dir())
    reader = profiler.open(run)
    tests = ["test_long", "test_shorter[1]", "test_shorter[2]", "test_child", "test_fails"]
    names = [f"test_it.py::{name}" for name in tests]
    statuses = {name: "error" if name.endswith("fails") else "finished" for name in names}
    found = rows(reader, kind="test")
    assert [(row["name"], row["status"]) for row in found] == list(statuses.items())
    for test in found:
        phases = rows(reader, parent_region_id=test["region_id"])
        assert [(row["name"], row["kind"]) for row in phases] == [(name, name) for name in ("setup", "call", "teardown")]
        assert [row["status"] for row in phases] == ["finished", test["status"], "finished"]
    (call,) = rows(reader, kind="call", status="error")
    assert json.loads(call["attributes"]) == {"exception": "AssertionError"}

    printed = result.stdout.str()
    table = re.findall(r"^ +([\d.]+) s  test_it.py::(\S+)$", printed.split("most CPU time:")[1].split("most ")[0], re.M)
    seconds = {name: float(value) for value, name in table}
    assert list(seconds.values()) == sorted(seconds.values(), reverse=True)
    for name, least, most in (("test_long", 0.29, 0.6), ("test_shorter[2]", 0.09, 0.25)):
        apart = away(reader, f"test_it.py::{name}")
        assert least - apart <= seconds[name] < most + apart
    known = [row for row in rows(reader, "region_usage") if row["user_ns"] is not None]
    usage = {row["name"]: (row["user_ns"] + row["system_ns"]) / 1e9 for row in known}
    for name, value in seconds.items():
        assert abs(value - usage[f"test_it.py::{name}"]) <= 0.0006


def test_fixtures_and_skipped_tests(pytester: pytest.Pytester) -> None:
    """Marks of a fixture belong to the phase that runs it; where a test fails, its status tells it."""
    pytester.makepyfile(
        test_it="""
        import profiler, pytest

        @pytest.fixture
        def data():
            profiler.event("before")
            yield 1
            profiler.event("after")

        @pytest.fixture
        def broken():
            raise OSError("no disk")

        def test_fixture(data):
            profiler.event("in")

        def test_setup(broken):
            pass

        @pytest.mark.skip
        def test_marked():
            pass

        def test_skipped():
            pytest.skip("later")

        @pytest.mark.xfail
        def test_expected():
            raise ValueError
        """
    )
    result = pytester.runpytest_subprocess("--node-profile")
    result.assert_outcomes(passed=1, errors=1, skipped=2, xfailed=1)
    (run,) = (path for path in (pytester.path / "profiles").iterdir() if path.is_dir())
    reader = profiler.open(run)
    tests = {row["name"].split("::")[1]: row for row in rows(reader, kind="test")}
    assert {name: row["status"] for name, row in tests.items()} == {
        "test_fixture": "finished",
        "test_setup": "error",
        "test_marked": "skipped",
        "test_skipped": "skipped",
        "test_expected": "error",
    }
    phases = {row["region_id"]: row["name"] for row in rows(reader, parent_region_id=tests["test_fixture"]["region_id"])}
    events = [(row["name"], phases[row["parent_region_id"]]) for row in rows(reader, op="event")]
    assert events == [("before", "setup"), ("in", "call"), ("after", "teardown")]
    inside = rows(reader, parent_region_id=tests["test_setup"]["region_id"])
    assert [(row["name"], row["status"]) for row in inside] == [("setup", "error"), ("teardown", "finished")]


def test_number_of_tests_in_a_table(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess("--node-profile", "--node-profile-slowest=1")
    table = result.stdout.str().split("most CPU time:")[1].splitlines()
    assert table[1].endswith("::test_long") and not table[2].startswith(" ")
    assert (pytester.path / "profiles").is_dir()


def test_without_the_option_nothing_runs(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import profiler\ndef test_it(): assert not profiler.active()")
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    assert "= profile =" not in result.stdout.str() and not (pytester.path / "profiles").exists()


def test_tests_of_the_package_itself_can_run(pytester: pytest.Pytester) -> None:
    """A test that starts a run of its own."""
    pytester.makepyfile(
        """
        import profiler
        def test_it(tmp_path):
            with profiler.run("100ms", str(tmp_path)) as p:
                profiler.event("inner")
            assert [*p.open().region.pl()["name"]] == ["inner"]
        """
    )
    result = pytester.runpytest_subprocess("--node-profile")
    result.assert_outcomes(passed=1)
    (run,) = (path for path in (pytester.path / "profiles").iterdir() if path.is_dir())
    assert len(rows(profiler.open(run), kind="test")) == 1


def test_a_profiler_that_cannot_start(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_subprocess("--node-profile", "--node-profile-interval=1us")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --node-profile: invalid value '1us'*"])
    monkeypatch.setenv("PROFILER", "/nonexistent")
    result = pytester.runpytest_subprocess("--node-profile")
    result.stderr.fnmatch_lines(["ERROR: --node-profile: PROFILER=/nonexistent: not an executable file"])


def test_a_session_that_is_interrupted(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): raise KeyboardInterrupt")
    result = pytester.runpytest_subprocess("--node-profile")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    (run,) = (path for path in (pytester.path / "profiles").iterdir() if path.is_dir())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert profiler.open(run).metadata[0]["state"] == "complete"


def test_workers_of_xdist_mark_their_tests(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist", reason="the tier installs it")
    pytester.makepyfile(test_it=TESTS)
    result = pytester.runpytest_subprocess("--node-profile", "-n2", "--node-profile-interval=100ms")
    result.assert_outcomes(passed=4, failed=1)
    (run,) = (path for path in (pytester.path / "profiles").iterdir() if path.is_dir())
    found = rows(profiler.open(Path(run)), kind="test")
    assert sorted(row["name"].split("::")[1] for row in found) == sorted(
        ["test_child", "test_fails", "test_long", "test_shorter[1]", "test_shorter[2]"]
    )
    assert len({row["pid"] for row in found}) == 2
    calls = rows(profiler.open(Path(run)), kind="call")
    assert {row["parent_region_id"] for row in calls} == {row["region_id"] for row in found}
    result.stdout.fnmatch_lines(["*= profile =*", "*test_it.py::test_long"])
