"""Dask and joblib with the real packages, and Flowcept's names."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import Run, losses, rows


def values(row: dict[str, Any], column: str) -> Any:
    return json.loads(row[column])


@pytest.mark.parametrize("processes", [True, False])
def test_dask(run: Run, processes: bool) -> None:
    pytest.importorskip("distributed", reason="the newest Python only")
    reader = run(
        f"""
        import time
        import dask
        from distributed import Client
        import profiler, profiler.dask

        def square(x):
            time.sleep(0.02)
            return x * x

        def fail(x):
            raise ValueError("wrong")

        if __name__ == "__main__":
            options = dict(n_workers=2, threads_per_worker=2, processes={processes}, dashboard_address=None)
            with dask.config.set({{"distributed.worker.profile.enabled": False}}), Client(**options) as client:
                client.register_plugin(profiler.dask.Regions())
                assert client.gather(client.map(square, range(8))) == [x * x for x in range(8)]
                try:
                    client.submit(fail, 1).result()
                except ValueError:
                    pass
                with profiler.region("own"):
                    pass
        """
    )
    squares = rows(reader, name="square")
    assert len(squares) == 8 and {(row["kind"], row["status"]) for row in squares} == {("dask", "finished")}
    assert len({row["group"] for row in squares}) == 8
    assert all(row["interval_ns"] >= 20e6 and row["parent_region_id"] is None for row in squares)
    (own,) = rows(reader, name="own")
    pids = {row["pid"] for row in squares}
    assert own["pid"] not in pids if processes else {own["pid"]} == pids
    (failed,) = rows(reader, name="fail")
    assert failed["status"] == "error" and not losses(reader)


@pytest.mark.parametrize("backend", ["loky", "threading", "multiprocessing", "sequential"])
def test_joblib(run: Run, backend: str) -> None:
    pytest.importorskip("joblib", reason="the tier installs it")
    reader = run(
        f"""
        import profiler
        from joblib import delayed
        from profiler.joblib import Parallel

        def square(x):
            if x == 25:
                raise ValueError("wrong")
            with profiler.region("inner"):
                return x * x

        if __name__ == "__main__":
            with profiler.region("search"):
                # joblib takes all but the first four from a thread of its own.
                found = Parallel(n_jobs=2, backend="{backend}")(delayed(square)(x) for x in range(20))
                assert found == [x * x for x in range(20)]
            try:
                Parallel(n_jobs=2, backend="{backend}")([delayed(square)(25)])
            except ValueError:
                pass
        """
    )
    (search,) = rows(reader, name="search")
    squares = rows(reader, name="square")
    inside = [row for row in squares if row["parent_region_id"] == search["region_id"]]
    assert len(squares) == 21 and len(inside) == 20
    assert {(row["kind"], row["status"]) for row in inside} == {("joblib", "finished")}
    inner = rows(reader, name="inner")
    assert sorted(row["parent_region_id"] for row in inner) == sorted(row["region_id"] for row in inside)
    assert (search["pid"] in {row["pid"] for row in squares}) == (backend in ("threading", "sequential"))
    (failed,) = [row for row in squares if row["parent_region_id"] is None]
    assert failed["status"] == "error" and values(failed, "attributes")["message"] == "wrong"
    assert not losses(reader)


def test_backend_of_joblib(run: Run) -> None:
    """Calls by a library, which has a `Parallel` of its own."""
    pytest.importorskip("joblib", reason="the tier installs it")
    reader = run(
        """
        from joblib import Parallel, delayed, parallel_config
        import profiler, profiler.joblib

        def square(x):
            with profiler.region("inner"):
                return x * x

        if __name__ == "__main__":
            with parallel_config(backend="profiler", n_jobs=2):
                # Our own one does not mark the calls twice.
                for name, kind in (("first", Parallel), ("second", profiler.joblib.Parallel)):
                    with profiler.region(name):
                        found = kind(batch_size=3)(delayed(square)(x) for x in range(20))
                        assert found == [x * x for x in range(20)]
                assert Parallel(n_jobs=1)(delayed(square)(x) for x in [2]) == [4]
                assert profiler.joblib.Parallel(n_jobs=1)(delayed(square)(x) for x in [3]) == [9]
        """
    )
    searches = [rows(reader, name=name)[0] for name in ("first", "second")]
    squares, inner = rows(reader, name="square"), rows(reader, name="inner")
    for search in searches:
        assert sum(row["parent_region_id"] == search["region_id"] for row in squares) == 20
    # joblib has no backend for a single job.
    *in_workers, own = squares
    assert len(in_workers) == 40 and own["pid"] == searches[0]["pid"] not in {row["pid"] for row in in_workers}
    parents = sorted(row["parent_region_id"] or 0 for row in inner)
    assert parents == sorted([0, *(row["region_id"] for row in squares)])
    assert not losses(reader)


def test_joblib_without_profiler() -> None:
    joblib = pytest.importorskip("joblib", reason="the tier installs it")
    from profiler.joblib import Parallel

    assert Parallel(n_jobs=2)(joblib.delayed(abs)(x) for x in range(-5, 0)) == [5, 4, 3, 2, 1]
    with joblib.parallel_config(backend="profiler", n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(abs)(x) for x in range(-5, 0)) == [5, 4, 3, 2, 1]


FLOWCEPT = """
    from profiler.flowcept import Flowcept, FlowceptLoop, FlowceptTask, flowcept, flowcept_task

    @flowcept_task(output_names="total", tags=["t"], subtype="math", custom_metadata={"cost": 1})
    def add(a, b=2):
        return a + b

    @flowcept_task
    def bare(x):
        return {"y": x}

    with Flowcept(workflow_name="demo", campaign_id="c1", workflow_args={"n": 3}, interceptors=["mlflow"]):
        assert add(1) == 3
        assert bare(4) == {"y": 4}
        loop = FlowceptLoop(items=2, loop_name="epochs", item_name="epoch")
        for epoch in loop:
            loop.end_iter({"loss": epoch / 2})
        with FlowceptTask(activity_id="by hand", used={"a": 1}) as task:
            task.end(generated={"b": 2}, status="FINISHED")

    @flowcept
    def main():
        assert add(5, b=6) == 11
    main()
    """


def test_names_of_flowcept(run: Run) -> None:
    reader = run(FLOWCEPT)
    workflow, add, bare, first, second, by_hand, main, again = rows(reader)
    names = [row["name"] for row in rows(reader)]
    assert names == ["demo", "add", "bare", *["epochs_iteration"] * 2, "by hand", "main", "add"]
    assert (workflow["kind"], workflow["group"], values(workflow, "used")) == ("workflow", "c1", {"n": 3})
    assert {row["parent_region_id"] for row in (add, bare, first, second, by_hand)} == {workflow["region_id"]}
    assert (values(add, "used"), values(add, "generated"), add["kind"]) == ({"a": 1, "b": 2}, {"total": 3}, "math")
    assert values(add, "tags") == ["t"] and values(add, "attributes") == {"custom_metadata": {"cost": 1}}
    assert (values(bare, "used"), values(bare, "generated")) == ({"x": 4}, {"y": 4})
    assert [values(row, "used") for row in (first, second)] == [{"i": 0, "epoch": 0}, {"i": 1, "epoch": 1}]
    assert [values(row, "generated") for row in (first, second)] == [{"loss": 0.0}, {"loss": 0.5}]
    assert (values(by_hand, "used"), values(by_hand, "generated")) == ({"a": 1}, {"b": 2})
    assert main["kind"] == "workflow" and again["parent_region_id"] == main["region_id"]
    assert {row["status"] for row in rows(reader)} == {"finished"}


def test_flowcept_starts_a_run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import profiler
    from profiler.flowcept import Flowcept, flowcept_task

    monkeypatch.chdir(tmp_path)

    @flowcept_task
    def work(n: int) -> int:
        return n

    with Flowcept(workflow_name="alone", campaign_id="c2") as workflow:
        assert profiler.active()
        work(1)
    assert not profiler.active() and workflow.path
    reader = profiler.open(workflow.path)
    assert [row["name"] for row in rows(reader)] == ["alone", "work"]
    assert reader.metadata[0]["config"]["labels"] == {"workflow_name": "alone", "campaign": "c2"}
    assert Flowcept.current_workflow_id == workflow.path.rpartition("/")[2]
    with Flowcept(start_run=False):
        work(2)
    assert len(list((tmp_path / "profiles").glob("*/run.json"))) == 1


def test_flowcept_after_the_profiler_has_died(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow starts a run of its own."""
    import profiler
    from profiler import flowcept

    monkeypatch.chdir(tmp_path)
    with pytest.raises(profiler.Error, match="killed by signal 9"), profiler.run("100ms", run_id="first") as p:
        assert p._process is not None
        p._process.kill()
        p._process.wait()
        profiler.event("to nobody")
        with flowcept.Flowcept(workflow_name="after") as workflow:
            pass
    assert workflow.path is not None
    assert [row["name"] for row in rows(profiler.open(workflow.path))] == ["after"]
