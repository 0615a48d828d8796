"""JAX, Keras and mpi4py. Dask and joblib are in test_integrations.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from conftest import BINARY, Run, losses, rows

import profiler


def data(row: dict[str, Any], column: str) -> Any:
    return None if row[column] is None else json.loads(row[column])


def named(reader: Any, name: str, **where: Any) -> dict[str, Any]:
    (row,) = rows(reader, name=name, **where)
    return row


KERAS = """
import os
os.environ.update(KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
import keras, numpy, profiler.keras

class Failing(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        raise ValueError

def fit(*callbacks, **options):
    x, y = numpy.ones((6, 4)), numpy.zeros((6, 1))
    return model.fit(x, y, batch_size=2, epochs=2, verbose=0, callbacks=callbacks, **options)

model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)], name="net")
model.compile("sgd", "mse", metrics=["mae"])
"""


@pytest.fixture
def keras() -> None:
    # Importing it here would choose its backend.
    if not find_spec("keras") or not find_spec("jax"):
        pytest.skip("keras and jax are not installed")


def test_keras(run: Run, keras: None) -> None:
    reader = run(
        KERAS
        + """
history = fit(profiler.keras.Regions(), validation_data=(numpy.ones((2, 4)), numpy.zeros((2, 1)))).history
profiler.event("history", losses=history["loss"], val=history["val_loss"])
model.evaluate(numpy.ones((2, 4)), numpy.zeros((2, 1)), verbose=0, callbacks=[profiler.keras.Regions()])
model.predict(numpy.ones((2, 4)), verbose=0, callbacks=[profiler.keras.Regions(batches=False)])
"""
    )
    fit, predict = named(reader, "fit"), named(reader, "predict")
    assert data(fit, "attributes") == {"model": "net"} and predict["parent_region_id"] is None
    epochs, batches, validations = (rows(reader, name=name) for name in ("epoch", "batch", "validation"))
    assert [data(row, "used") for row in epochs] == [{"epoch": 0}, {"epoch": 1}]
    assert {row["parent_region_id"] for row in epochs} == {fit["region_id"]}
    first, second = (row["region_id"] for row in epochs)
    assert [row["parent_region_id"] for row in batches] == [first] * 3 + [second] * 3
    assert [data(row, "used")["batch"] for row in batches] == [0, 1, 2] * 2
    assert [row["parent_region_id"] for row in validations] == [first, second, None]
    regions = rows(reader, op="region")
    assert all(row["kind"] == row["name"] and row["status"] == "finished" for row in regions)
    gauges = rows(reader, "region_gauge")
    history = data(named(reader, "history"), "attributes")
    for name, values in (("loss", history["losses"]), ("val_loss", history["val"])):
        found = [row for row in gauges if row["name"] == name and row["parent_region_id"] in (first, second)]
        assert [row["value"] for row in found] == pytest.approx(values)
        assert [data(row, "attributes")["epoch"] for row in found] == [0, 1]
    # `evaluate` has no epoch.
    assert sum(row["name"] == "mae" for row in gauges) == 3 and not losses(reader)


def test_keras_that_fails(run: Run, keras: None) -> None:
    reader = run(
        KERAS
        + """
regions = profiler.keras.Regions()
try:
    fit(regions, Failing())
except ValueError:
    pass
fit(regions)
profiler.event("after")
"""
    )
    assert [row["status"] for row in rows(reader, name="fit")] == ["error", "finished"]
    assert [row["status"] for row in rows(reader, name="epoch")] == ["error", "finished", "finished"]
    assert [row["parent_region_id"] for row in rows(reader, name="fit")] == [None, None]
    assert named(reader, "after")["parent_region_id"] is None


def test_jax_reports_known_peaks_only(run: Run) -> None:
    pytest.importorskip("jax")
    reader = run(
        """
        import os
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax, profiler, profiler.jax

        jax.numpy.ones(1000).sum().block_until_ready()
        known = [device for device in jax.local_devices() if device.memory_stats()]
        profiler.event("devices", known=len(known))
        profiler.jax.peak_memory()

        class Device:
            platform, id = "gpu", 0
            def memory_stats(self):
                return {"peak_bytes_in_use": 4096}

        class Other(Device):
            id = 1
            def memory_stats(self):
                return {"bytes_in_use": 1}

        jax.local_devices = lambda: [Device(), Other()]
        with profiler.region("step"):
            profiler.jax.peak_memory(step=3)
        """
    )
    gauges = rows(reader, "region_gauge")
    known = data(named(reader, "devices"), "attributes")["known"]
    assert len(gauges) == known + 1
    last = gauges[-1]
    assert (last["name"], last["value"], last["unit"]) == ("jax_peak_bytes", 4096.0, "bytes")
    assert data(last, "attributes") == {"device": "gpu:0", "step": 3}
    assert last["parent_region_id"] == named(reader, "step")["region_id"]


def mpirun() -> str:
    pytest.importorskip("mpi4py")
    found = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("mpirun is not installed")
    return found


def test_mpi_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import profiler, profiler.mpi
            assert profiler.mpi.attributes() == {}
            profiler.mpi.mark_rank()
            from mpi4py import MPI
            profiler.mpi.mark_rank()
            half = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank % 2)
            with profiler.region("solve", **profiler.mpi.attributes(half)):
                MPI.COMM_WORLD.Barrier()
            MPI.Finalize()
            assert profiler.mpi.attributes() == {}
            """
        )
    )
    options = ["run", "-q", "-i", "100ms", "--out", str(tmp_path), "--run-id", "mpi", "--"]
    program = [mpirun(), "-n", "4", sys.executable, str(script)]
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    done = subprocess.run(
        [str(BINARY), *options, *program], env={**os.environ, **allowed}, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    reader = profiler.open(tmp_path / "mpi")
    events = rows(reader, name="MPI_rank")
    found = [data(row, "attributes") for row in events]
    assert sorted(attributes["rank"] for attributes in found) == [0, 1, 2, 3]
    assert {attributes["size"] for attributes in found} == {4} and {row["kind"] for row in events} == {"mpi"}
    assert all(attributes["host"] for attributes in found)
    solve = [data(row, "attributes") for row in rows(reader, name="solve")]
    assert sorted((attributes["rank"], attributes["size"]) for attributes in solve) == [(0, 2), (0, 2), (1, 2), (1, 2)]
    # The profiler takes the ranks of processes from their environment.
    ranks = {row["pid"]: row["task_rank"] for row in rows(reader, "process")}
    assert all(int(ranks[row["pid"]]) == data(row, "attributes")["rank"] for row in events)


def test_mpi_is_not_initialized(run: Run) -> None:
    pytest.importorskip("mpi4py")
    run(
        """
        import sys, mpi4py, profiler.mpi
        profiler.mpi.mark_rank()
        assert "mpi4py.MPI" not in sys.modules
        mpi4py.rc.initialize = False
        from mpi4py import MPI
        profiler.mpi.mark_rank()
        assert profiler.mpi.attributes() == {} and not MPI.Is_initialized()
        """
    )


@pytest.mark.parametrize("module", ["jax", "keras", "lightning", "mpi", "perfmon", "torch"])
def test_frameworks_are_not_imported_unasked(module: str) -> None:
    program = f"import sys, profiler, profiler.flowcept; assert not {{'{module}', 'profiler.{module}'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
