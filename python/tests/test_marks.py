"""Known marks give known rows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Run, losses, rows

from profiler import _channel, _json


def named(reader: Any, name: str) -> dict[str, Any]:
    (row,) = rows(reader, name=name)
    return row


def data(row: dict[str, Any], column: str) -> Any:
    return None if row[column] is None else json.loads(row[column])


def test_regions_events_phases_and_gauges(run: Run) -> None:
    reader = run(
        """
        import profiler, time
        with profiler.region("outer", kind="k", group="g", tags=["a", "b"], epoch=3) as outer:
            with profiler.region("inner", used=["in.csv"]) as inner:
                inner.generated = {"rows": 7}
                inner.update(loss=0.5)
            outer.status = "skipped"
            profiler.event("checkpoint", step=1)
            profiler.gauge("memory", 1 << 30, "bytes", device="cpu")
        profiler.phase("compile", 2.5, generated="model")

        @profiler.region("decorated", depth=1)
        def decorated(x):
            return x + 1
        assert decorated(1) == 2
        profiler.gauge("nothing", float("nan"))
        """
    )
    outer, inner = named(reader, "outer"), named(reader, "inner")
    assert (outer["kind"], outer["group"], outer["status"]) == ("k", "g", "skipped")
    assert data(outer, "tags") == ["a", "b"] and data(outer, "attributes") == {"epoch": 3}
    assert inner["parent_region_id"] == outer["region_id"] and inner["status"] == "finished"
    assert data(inner, "used") == ["in.csv"] and data(inner, "generated") == {"rows": 7}
    assert data(inner, "attributes") == {"loss": 0.5}
    event, phase = named(reader, "checkpoint"), named(reader, "compile")
    assert (event["op"], event["parent_region_id"], data(event, "attributes")) == ("event", outer["region_id"], {"step": 1})
    assert (phase["op"], data(phase, "generated")) == ("phase", "model")
    assert abs((phase["region_end_ts"] - phase["region_start_ts"]).total_seconds() - 2.5) < 1e-4
    (gauge,) = rows(reader, "region_gauge")
    assert (gauge["name"], gauge["value"], gauge["unit"]) == ("memory", float(1 << 30), "bytes")
    assert gauge["parent_region_id"] == outer["region_id"]
    assert data(named(reader, "decorated"), "attributes") == {"depth": 1}
    assert not losses(reader)


def test_task_records_arguments_results_and_exceptions(run: Run) -> None:
    reader = run(
        """
        import profiler

        @profiler.task
        def fit(data, epochs=2, *rest, rate=0.1, api_key="hidden", **more):
            return {"loss": 0.25, "token": "hidden"}

        @profiler.task(name="renamed", output_names=["a", "b"], kind="math", tags=["t"], level=1)
        def pair(x):
            return x, x + 1

        class Model:
            @profiler.task
            def forward(self, x):
                return x

        @profiler.task(used=False, generated=False)
        def quiet(x):
            return x

        @profiler.task
        def fail(password):
            raise KeyError("no column")

        assert fit([1, 2], 3, 4, deep={"Password": 1, "n": 1})["loss"] == 0.25
        assert pair(1) == (1, 2) and Model().forward(5) == 5 and quiet(1) == 1
        try:
            fail("hidden")
        except KeyError:
            pass
        """
    )
    fit = named(reader, "fit")
    assert data(fit, "used") == {"data": [1, 2], "epochs": 3, "rest": [4], "rate": 0.1, "deep": {"n": 1}}
    assert data(fit, "generated") == {"loss": 0.25}
    pair = named(reader, "renamed")
    assert data(pair, "generated") == {"a": 1, "b": 2} and (pair["kind"], data(pair, "tags")) == ("math", ["t"])
    assert data(pair, "attributes") == {"level": 1}
    assert data(named(reader, "forward"), "used") == {"x": 5}
    quiet, fail = named(reader, "quiet"), named(reader, "fail")
    assert quiet["used"] is None and quiet["generated"] is None
    assert (fail["status"], fail["used"]) == ("error", "{}")
    assert data(fail, "attributes") == {"exception": "KeyError", "message": "'no column'"}
    assert not any("hidden" in str(row) for row in rows(reader))


def test_asyncio_tasks_have_their_own_parents(run: Run) -> None:
    reader = run(
        """
        import asyncio, profiler

        @profiler.task
        async def leaf(n):
            await asyncio.sleep(0.01)
            return n

        @profiler.task
        async def branch(n):
            await asyncio.sleep(0)
            return await leaf(n)

        async def main():
            await asyncio.gather(*(branch(n) for n in range(4)))

        with profiler.region("main"):
            asyncio.run(main())
        """
    )
    branches = {row["region_id"]: data(row, "used")["n"] for row in rows(reader, name="branch")}
    leaves = {row["parent_region_id"]: data(row, "used")["n"] for row in rows(reader, name="leaf")}
    assert len(leaves) == 4 and leaves == branches
    assert {row["parent_region_id"] for row in rows(reader, name="branch")} == {named(reader, "main")["region_id"]}


def test_generators(run: Run) -> None:
    reader = run(
        """
        import asyncio, profiler

        @profiler.task
        def numbers(n):
            received = []
            for i in range(n):
                profiler.event("inside", i=i)
                try:
                    received.append((yield i))
                except ValueError:
                    received.append("thrown")
            return received

        generator = numbers(3)
        assert next(generator) == 0
        profiler.event("between")
        assert generator.send("sent") == 1
        assert generator.throw(ValueError()) == 2
        try:
            next(generator)
        except StopIteration as stop:
            assert stop.value == ["sent", "thrown", None]

        for number in numbers(5):
            if number == 1:
                break

        @profiler.task
        async def stream(n):
            try:
                for i in range(n):
                    await asyncio.sleep(0)
                    profiler.event("inside stream")
                    yield i
            finally:
                profiler.event("closed")

        async def main():
            assert [i async for i in stream(3)] == [0, 1, 2]
            other = stream(3)
            assert await other.__anext__() == 0
            profiler.event("between streams")
            await other.aclose()
        asyncio.run(main())
        """
    )
    first, second = rows(reader, name="numbers")
    assert data(first, "generated") == {"items": 3, "result": ["sent", "thrown", None]}
    assert data(second, "generated") == {"items": 2} and second["status"] == "finished"
    assert [row["parent_region_id"] for row in rows(reader, name="inside")][:3] == [first["region_id"]] * 3
    assert named(reader, "between")["parent_region_id"] is None
    whole, closed = rows(reader, name="stream")
    assert data(whole, "generated") == {"items": 3} and data(closed, "generated") == {"items": 1}
    assert named(reader, "between streams")["parent_region_id"] is None
    assert [row["parent_region_id"] for row in rows(reader, name="closed")] == [whole["region_id"], closed["region_id"]]


def test_ends_of_the_program_in_a_region(run: Run) -> None:
    """What is open when its process ends is unfinished."""
    reader = run(
        """
        import os, signal, subprocess, sys, profiler

        @profiler.task
        def numbers():
            yield 1
            yield 2

        generator = numbers()
        next(generator)

        def child(name, end):
            if os.fork() == 0:
                with profiler.region(name):
                    end()
                os._exit(9)
            return os.waitstatus_to_exitcode(os.wait()[1])

        assert child("os._exit", lambda: os._exit(4)) == 4
        assert child("killed", lambda: os.kill(os.getpid(), signal.SIGKILL)) == -9
        assert child("terminated", lambda: os.kill(os.getpid(), signal.SIGTERM)) == -15
        # A shell's background jobs ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with profiler.region("interrupted"):
                os.kill(os.getpid(), signal.SIGINT)
                signal.pause()
        except KeyboardInterrupt:
            pass
        try:
            with profiler.region("exit"):
                sys.exit(0)
        except SystemExit:
            pass
        sys.stdout.flush()
        os._exit(0)
        """
    )
    status = {row["name"]: row["status"] for row in rows(reader)}
    assert status == {
        "numbers": "unfinished",
        "os._exit": "unfinished",
        "killed": "unfinished",
        "terminated": "unfinished",
        "interrupted": "error",
        "exit": "error",
    }
    assert data(named(reader, "interrupted"), "attributes")["exception"] == "KeyboardInterrupt"
    assert not losses(reader)


def test_programs_belong_to_the_region(run: Run) -> None:
    reader = run(
        """
        import subprocess, sys, profiler
        inner = "import profiler\\nwith profiler.region('inner'): pass"
        with profiler.region("outer"):
            subprocess.run([sys.executable, "-c", inner], check=True, env=profiler.environment())
            subprocess.run([sys.executable, "-c", inner.replace("inner", "other")], check=True)
        assert profiler.environment() == dict(__import__("os").environ)
        """
    )
    outer, inner, other = (named(reader, name) for name in ("outer", "inner", "other"))
    assert len({outer["pid"], inner["pid"], other["pid"]}) == 3
    assert (inner["parent_region_id"], other["parent_region_id"]) == (outer["region_id"], None)
    assert not losses(reader)


def test_loop_marks_iterations(run: Run) -> None:
    reader = run(
        """
        import profiler
        loop = profiler.loop("abc", name="letter", item="letter")
        assert len(loop) == 3
        for letter in loop:
            profiler.event("inside")
            loop.update(letter.upper(), last=letter == "b")
            if letter == "b":
                break
        profiler.event("after")
        """
    )
    first, second = rows(reader, name="letter")
    assert data(first, "used") == {"i": 0, "letter": "a"} and data(second, "used") == {"i": 1, "letter": "b"}
    assert data(second, "generated") == "B" and data(second, "attributes") == {"last": True}
    assert first["group"] == second["group"] and second["status"] == "finished"
    assert [row["parent_region_id"] for row in rows(reader, name="inside")] == [first["region_id"], second["region_id"]]
    assert named(reader, "after")["parent_region_id"] is None


def test_threads(run: Run) -> None:
    reader = run(
        """
        import profiler, threading, time

        def work(n):
            for i in range(5):
                with profiler.region(f"thread {n}"):
                    with profiler.region("inner", n=n):
                        time.sleep(0.01)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        """
    )
    outer = {row["region_id"]: row["name"] for row in rows(reader) if row["name"] != "inner"}
    inner = rows(reader, name="inner")
    assert len(outer) == len(inner) == 20
    assert all(outer[row["parent_region_id"]] == f"thread {data(row, 'attributes')['n']}" for row in inner)
    assert {row["status"] for row in rows(reader)} == {"finished"}


def test_fork_in_a_region(run: Run) -> None:
    reader = run(
        """
        import os, profiler
        with profiler.region("parent"):
            child = os.fork()
            with profiler.region("child" if child == 0 else "own"):
                pass
            # The parent of a region must be open. The child leaves this one without ending it.
            if child:
                os.waitpid(child, 0)
                profiler.event("still inside")
        """
    )
    parent, child, own = (named(reader, name) for name in ("parent", "child", "own"))
    assert child["parent_region_id"] == own["parent_region_id"] == parent["region_id"]
    assert child["pid"] != parent["pid"] == own["pid"]
    assert named(reader, "still inside")["parent_region_id"] == parent["region_id"]
    assert [row["status"] for row in (parent, child, own)] == ["finished"] * 3
    assert len(rows(reader)) == 4


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(run: Run, method: str) -> None:
    reader = run(
        f"""
        import multiprocessing, profiler

        @profiler.task
        def square(x):
            return x * x

        if __name__ == "__main__":
            context = multiprocessing.get_context("{method}")
            with profiler.region("pool"), context.Pool(2) as pool:
                assert pool.map(profiler.propagate(square), range(6), chunksize=1) == [x * x for x in range(6)]
        """
    )
    pool, squares = named(reader, "pool"), rows(reader, name="square")
    assert sorted(data(row, "generated") for row in squares) == [x * x for x in range(6)]
    assert {row["parent_region_id"] for row in squares} == {pool["region_id"]}
    assert pool["pid"] not in {row["pid"] for row in squares}


@pytest.mark.parametrize("pool", ["ThreadPoolExecutor", "ProcessPoolExecutor"])
def test_executors(run: Run, pool: str) -> None:
    reader = run(
        f"""
        import concurrent.futures, profiler

        @profiler.task
        def square(x):
            return x * x

        if __name__ == "__main__":
            with concurrent.futures.{pool}(2) as pool:
                for name in ("first", "second"):
                    with profiler.region(name):
                        assert list(pool.map(profiler.propagate(square), range(8))) == [x * x for x in range(8)]
                        future = pool.submit(profiler.propagate(square), 9)
                        concurrent.futures.wait([future])
        """
    )
    squares = rows(reader, name="square")
    assert sorted(data(row, "generated") for row in squares) == sorted([x * x for x in [*range(8), 9]] * 2)
    for name in ("first", "second"):
        outer = named(reader, name)
        assert sum(row["parent_region_id"] == outer["region_id"] for row in squares) == 9
        assert (outer["pid"] in {row["pid"] for row in squares}) == (pool == "ThreadPoolExecutor")


def test_dropped_marks_are_reported(run: Run) -> None:
    reader = run(
        """
        import time
        import profiler
        for _ in range(20_000):
            profiler.event("burst")
        time.sleep(0.2)
        profiler.event("after")
        """
    )
    overhead = reader.sql("SELECT component, sum(dropped) FROM overhead WHERE component_kind = 'marks' GROUP BY ALL").fetchall()
    lost = sum(count for _, count in overhead)
    assert len(rows(reader, name="after")) == 1
    assert len(rows(reader, name="burst")) + lost == 20_000


def test_large_and_hostile_values_do_not_lose_the_mark(run: Run) -> None:
    reader = run(
        """
        import os, pathlib, profiler

        class Failing:
            def __fspath__(self):
                raise RuntimeError
            def __repr__(self):
                raise RuntimeError
        os.PathLike.register(Failing)

        class Unprintable(Exception):
            def __str__(self):
                raise RuntimeError

        @profiler.task
        def big(*values, **named):
            return values

        big("x" * 100_000, "\\U0001f600" * 10_000, b"1234", "\\udc80", float("inf"), 2**70, -(2**80), 10**5000)
        big([[[[[[[[1]]]]]]]], {i: {j: "v" * 50 for j in range(99)} for i in range(99)}, [[]] * 5000)
        big(Failing(), Failing, pathlib.Path("/x"), {1, 2}, range(3), object())
        try:
            with profiler.region("n" * 5000, kind="\\U0001f600" * 900, **{"a" * 900: "b" * 9000}, tags=["t" * 500] * 50):
                raise Unprintable
        except Unprintable:
            pass
        recursive = []
        recursive.append(recursive)
        big(recursive)
        """
    )
    assert not losses(reader)
    assert len(rows(reader, name="big")) == 4 and len(rows(reader)) == 5
    values = data(rows(reader, name="big")[0], "used")["values"]
    assert values[0].startswith("xxx") and values[2:6] == ["<4 bytes>", "\ufffd", "inf", "integer of 71 bits"]
    assert data(rows(reader, name="big")[2], "used")["values"][2:5] == ["/x", [1, 2], [0, 1, 2]]


@pytest.mark.parametrize(
    "value",
    [
        "\U0001f600" * 5000,
        ["\x00" * 50] * 500,
        [[]] * 5000,
        {"k" * 500 + str(n): [[], {}] for n in range(500)},
        [[[["\u1234" * 30] * 40] * 40] * 40] * 40,
    ],
)
@pytest.mark.parametrize("limit", [129, 500, 4096])
def test_json_is_limited_and_valid(value: Any, limit: int) -> None:
    text = _json.encode(value, limit)
    json.loads(text)
    assert len(text) <= limit and text.isascii()


def test_secrets_by_name() -> None:
    for name in ("password", "db_passwd", "API_KEY", "apiKey", "key", "secretValue", "auth", "access_token", "Cookie"):
        assert _json.is_secret(name), name
    for name in ("monkey", "keyboard", "author", "tokenizer", "passes", "epochs"):
        assert not _json.is_secret(name), name


def test_nothing_without_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    import profiler

    assert _channel.active is None and not profiler.active()
    with profiler.region("r") as region:
        region.generated = 1
        region.update(x=1)
    profiler.event("e")
    profiler.gauge("g", 1)
    profiler.phase("p", 1)
    assert list(profiler.loop([1, 2])) == [1, 2]
    _channel.connect("/nonexistent.sock")
    assert _channel.active is None
