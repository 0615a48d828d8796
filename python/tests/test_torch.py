"""PyTorch and Lightning."""

from __future__ import annotations

import copy
import json
import pickle
from importlib.util import find_spec
from typing import Any

import pytest
from conftest import Run, losses, rows

torch = pytest.importorskip("torch")


def data(row: dict[str, Any], column: str) -> Any:
    return None if row[column] is None else json.loads(row[column])


def named(reader: Any, name: str, **where: Any) -> dict[str, Any]:
    (row,) = rows(reader, name=name, **where)
    return row


NET = """
import profiler, profiler.torch, torch
from torch import nn

class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, x):
        return self.linear(x)

@profiler.torch.module{options}
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.inner = Inner()

    def forward(self, x, scale=1.0, fail=False):
        x = self.inner(self.first(x))
        if fail:
            raise ValueError("failed")
        return x * scale
"""


def test_modules(run: Run) -> None:
    reader = run(
        NET.format(options="")
        + """
net = Net()
net(torch.ones(3, 8), scale=2.0)
net.eval()
with profiler.region("evaluation"):
    net(torch.ones(5, 8, dtype=torch.float32))
"""
    )
    first, second = rows(reader, name="Net", kind="parent_forward")
    inputs, outputs = data(first, "used"), data(first, "generated")["tensor"]
    assert inputs["scale"] == 2.0
    assert isinstance(inputs["tensor"].pop("id"), int)
    assert inputs["tensor"] == {
        "shape": [3, 8], "dtype": "torch.float32", "device": "cpu", "numel": 24, "nbytes": 96, "is_sparse": False,
    }  # fmt: skip
    assert (outputs["shape"], outputs["numel"]) == ([3, 4], 12)
    assert data(first, "attributes") == {"is_training": True}
    assert data(second, "attributes") == {"is_training": False}
    assert second["parent_region_id"] == named(reader, "evaluation")["region_id"] and first["parent_region_id"] is None
    children = rows(reader, kind="child_forward")
    assert [row["name"] for row in children] == ["Linear", "Inner"] * 2
    assert [row["parent_region_id"] for row in children] == [first["region_id"]] * 2 + [second["region_id"]] * 2
    assert data(children[0], "attributes") == {"is_training": True, "module": "first"}
    # What one module generates is what the next one uses.
    assert data(children[0], "generated")["tensor"]["id"] == data(children[1], "used")["tensor"]["id"]
    event = named(reader, "Net", op="event")
    profile = data(event, "attributes")["model_profile"]
    assert event["kind"] == "torch_module"
    assert (profile["params"], profile["n_modules"], profile["max_width"]) == (8 * 16 + 16 + 16 * 4 + 4, 4, 16)
    assert "(first): Linear(in_features=8" in profile["model_repr"]
    assert {row["status"] for row in rows(reader, op="region")} == {"finished"} and not losses(reader)


def test_depth_and_tensors(run: Run) -> None:
    reader = run(NET.format(options="(depth=None, tensors=False)") + "Net()(torch.ones(1, 8))")
    parents = {row["region_id"]: row["name"] for row in rows(reader)}
    found = [
        (row["name"], parents.get(row["parent_region_id"]), data(row, "attributes").get("module"))
        for row in rows(reader, op="region")
    ]
    assert found == [
        ("Net", None, None),
        ("Linear", "Net", "first"),
        ("Inner", "Net", "inner"),
        ("Linear", "Inner", "inner.linear"),
    ]
    assert all(row["used"] is None and row["generated"] is None for row in rows(reader))


@pytest.mark.parametrize(
    ("options", "children", "tensors"),
    [("(depth=0)", 0, True), ("", 2, True), ("(tensors=False)", 2, False)],
    ids=["parent_only", "parent_and_children", "lightweight"],
)
def test_modes_of_flowcept(run: Run, options: str, children: int, tensors: bool) -> None:
    reader = run(
        NET.format(options=options)
        + """
net = Net()
for epoch in profiler.torch.epochs(2):
    for batch in profiler.torch.batches(3):
        net(torch.ones(2, 8))
"""
    )
    assert len(rows(reader, name="epoch")) == 2
    batches = [row["region_id"] for row in rows(reader, name="batch")]
    calls, inside = rows(reader, kind="parent_forward"), rows(reader, kind="child_forward")
    assert [row["parent_region_id"] for row in calls] == batches and len(batches) == 6
    assert len(inside) == 6 * children
    assert {row["parent_region_id"] for row in inside} <= {row["region_id"] for row in calls}
    for row in calls + inside:
        assert (row["used"] is not None, row["generated"] is not None) == (tensors, tensors)


LOADER = """
import os, profiler, profiler.torch, torch
from torch.utils.data import DataLoader, Dataset

class Files(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        with profiler.region("load"), open("file", "rb", buffering=0) as file:
            return len(file.read(1_000_000 * (index + 1)))

if __name__ == "__main__":
    open("file", "wb").write(bytes(8_000_000))
    loader = DataLoader(Files(), batch_size=2, num_workers=2, {options})
    for epoch in profiler.torch.epochs(2):
        found = [int(x) for batch in profiler.torch.batches(loader) for x in batch]
        assert found == [1_000_000 * (index + 1) for index in range(8)]
"""


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_loader(run: Run, persistent: bool) -> None:
    reader = run(LOADER.format(options=f"multiprocessing_context='fork', persistent_workers={persistent}"))
    epochs, loads = rows(reader, name="epoch"), rows(reader, name="load")
    processes = {row["pid"]: row for row in rows(reader, "process")}
    workers = {row["pid"] for row in loads}
    assert len(loads) == 16 and {row["status"] for row in loads} == {"finished"}
    assert len(workers) == (2 if persistent else 4)
    assert {processes[pid]["ppid"] for pid in workers} == {epochs[0]["pid"]}
    # A worker belongs to the region in which it was started, as long as that is open.
    first, second = (row["region_id"] for row in epochs)
    assert [row["parent_region_id"] for row in loads] == [first] * 8 + [None if persistent else second] * 8
    # Beside the data, a worker reads modules that it needs.
    read = sum(row["read_bytes"] for row in rows(reader, "file_io") if row["pid"] in workers)
    assert 72_000_000 <= read < 74_000_000 and not losses(reader)


def test_exceptions(run: Run) -> None:
    reader = run(
        NET.format(options="")
        + """
net = Net()
for _ in range(2):
    try:
        net(torch.ones(1, 8), fail=True)
    except ValueError:
        # An exception that is being handled is not one of this call.
        net(torch.ones(1, 8))
    try:
        net(torch.ones(1, 9))
    except RuntimeError:
        pass
profiler.event("after")
"""
    )
    calls = rows(reader, name="Net", op="region")
    assert [row["status"] for row in calls] == ["error", "finished", "error"] * 2
    assert data(calls[0], "attributes")["message"] == "failed"
    assert data(calls[2], "attributes")["exception"] == "RuntimeError"
    assert [row["status"] for row in rows(reader, name="Linear")] == ["finished", "finished", "error"] * 2
    assert named(reader, "after")["parent_region_id"] is None


def test_epochs_and_batches(run: Run) -> None:
    reader = run(
        NET.format(options="(depth=0)")
        + """
from torch.utils.data import DataLoader, TensorDataset
net = Net()
loader = DataLoader(TensorDataset(torch.ones(6, 8), torch.ones(6, 4)), batch_size=3)
epochs = profiler.torch.epochs(2)
for epoch in epochs:
    for x, y in profiler.torch.batches(loader, step="train"):
        nn.functional.mse_loss(net(x), y).backward()
    epochs.update({"loss": 0.5})
"""
    )
    epochs, batches = rows(reader, name="epoch"), rows(reader, name="batch")
    assert {row["kind"] for row in epochs} == {"epoch"} and {row["kind"] for row in batches} == {"batch"}
    assert [data(row, "used") for row in epochs] == [{"i": 0, "epoch": 0}, {"i": 1, "epoch": 1}]
    assert data(epochs[1], "generated") == {"loss": 0.5}
    first, second = (row["region_id"] for row in epochs)
    assert [row["parent_region_id"] for row in batches] == [first] * 2 + [second] * 2
    assert data(batches[0], "used")["batch"][0]["shape"] == [3, 8]
    assert data(batches[0], "attributes") == {"step": "train"}
    calls = rows(reader, name="Net", op="region")
    assert [row["parent_region_id"] for row in calls] == [row["region_id"] for row in batches]


def test_threads_copies_and_pickles(run: Run) -> None:
    reader = run(
        NET.format(options="")
        + """
import copy, io, pickle, threading
net = Net()
net(torch.ones(1, 8))
others = [copy.deepcopy(net), pickle.loads(pickle.dumps(net))]
threads = [threading.Thread(target=other, args=(torch.ones(n + 2, 8),)) for n, other in enumerate(others)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    )
    calls = rows(reader, name="Net", op="region")
    assert sorted(data(row, "used")["tensor"]["shape"][0] for row in calls) == [1, 2, 3]
    # All children have the parent of their own thread.
    for call in calls:
        count = data(call, "used")["tensor"]["shape"][0]
        children = rows(reader, parent_region_id=call["region_id"], kind="child_forward")
        assert [data(row, "used")["tensor"]["shape"][0] for row in children] == [count, count]


def test_values_without_shape(run: Run) -> None:
    reader = run(
        """
        import profiler, profiler.torch, torch
        from torch import nn

        class Anything(nn.Module):
            def forward(self, *values):
                return values[0]

            def extra_repr(self):
                raise RuntimeError

        net = profiler.torch.watch(Anything())
        net(torch.eye(3).to_sparse())
        net([torch.ones(2), {"x": torch.ones(1)}], "text", None)
        net(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]))
        net(torch.ones(2, device="meta"))
        net(None)
        lazy = profiler.torch.watch(nn.Sequential(nn.LazyLinear(2)))
        lazy(torch.ones(1, 3))
        script = profiler.torch.watch(nn.Sequential(torch.jit.script(nn.Linear(1, 1))))
        script(torch.ones(1, 1))
        """
    )
    sparse, several, nested, meta, nothing = rows(reader, name="Anything", op="region")
    assert data(sparse, "used")["tensor"]["is_sparse"] and data(sparse, "used")["tensor"]["nbytes"] is None
    assert data(several, "used")["tensor"][0]["shape"] == [2]
    assert (data(several, "used")["tensor_1"], data(several, "used")["tensor_2"]) == ("text", None)
    assert data(meta, "used")["tensor"]["device"] == "meta" and nothing["generated"] is None
    assert {row["status"] for row in rows(reader, op="region")} == {"finished"}


def test_compiled_module_has_one_region(run: Run) -> None:
    reader = run(
        NET.format(options="")
        + """
net = Net()
compiled = torch.compile(net, backend="eager")
assert torch.equal(compiled(torch.ones(2, 8)), compiled(torch.ones(2, 8)))
"""
    )
    assert {row["status"] for row in rows(reader, op="region")} <= {"finished"}


def test_nothing_without_profiler() -> None:
    import profiler.torch

    net = profiler.torch.watch(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    assert net(torch.ones(1, 2)).shape == (1, 2)
    assert not net[0]._forward_pre_hooks
    assert pickle.loads(pickle.dumps(copy.deepcopy(net)))(torch.ones(1, 2)).shape == (1, 2)
    assert list(profiler.torch.epochs(3)) == [0, 1, 2]


def test_program_of_flowcept(run: Run) -> None:
    reader = run(
        """
        import torch
        from profiler.flowcept import Flowcept, FlowceptBatchLoop, FlowceptEpochLoop, flowcept_torch
        from torch import nn

        @flowcept_torch
        class Net(nn.Module):
            def __init__(self, get_profile=True, custom_metadata=None, **kwargs):
                super().__init__()
                self.fc = nn.Linear(10, 1)

            def forward(self, x):
                return self.fc(x)

        with Flowcept(workflow_name="training"):
            model = Net(get_profile=True, custom_metadata={"a": 1}, parent_workflow_id="w")
            epochs = FlowceptEpochLoop(range(2), model=model, parent_task_id=None, workflow_id=model.workflow_id)
            for _ in epochs:
                for x in FlowceptBatchLoop([torch.ones(2, 10)], epochs_loop=epochs, step="train"):
                    model(x)
                for x in FlowceptBatchLoop([torch.ones(2, 10)], step="not captured"):
                    pass
            for _ in FlowceptEpochLoop(2, model=model, capture_enabled=False):
                pass
        """
    )
    assert len(rows(reader, op="region")) == 1 + 2 * 4
    workflow = named(reader, "training")
    epochs, batches = rows(reader, name="epochs_loop_iteration"), rows(reader, name="train_batch_iteration")
    assert {row["parent_region_id"] for row in epochs} == {workflow["region_id"]}
    assert [row["parent_region_id"] for row in batches] == [row["region_id"] for row in epochs]
    assert ({row["kind"] for row in epochs}, {row["kind"] for row in batches}) == ({"epoch"}, {"batch"})
    calls = rows(reader, kind="parent_forward")
    assert [row["parent_region_id"] for row in calls] == [row["region_id"] for row in batches]
    attributes = data(named(reader, "Net", op="event"), "attributes")
    assert attributes["custom_metadata"] == {"a": 1} and attributes["model_profile"]["params"] == 11


LIGHTNING = """
import torch
from {package} import LightningModule, Trainer
import profiler.lightning

class Model(LightningModule):
    def __init__(self, fail=False):
        super().__init__()
        self.layer, self.fail = torch.nn.Linear(4, 1), fail

    def step(self, name, batch):
        loss = self.layer(batch[0]).square().mean()
        self.log(name, loss)
        return loss

    def training_step(self, batch, index):
        if self.fail and index == 1:
            raise ValueError("failed")
        return self.step("loss", batch)

    def validation_step(self, batch, index):
        self.step("val_loss", batch)

    def test_step(self, batch, index):
        self.step("test_loss", batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(6, 4)), batch_size=2)
def trainer(**options):
    return Trainer(
        max_epochs=2, callbacks=[profiler.lightning.Regions(**options)], accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
"""


def installed(package: str) -> bool:
    return find_spec(package.partition(".")[0]) is not None


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning(run: Run, package: str) -> None:
    if not installed(package):
        pytest.skip(f"{package} is not installed")
    reader = run(
        LIGHTNING.format(package=package)
        + """
model = Model()
trainer = trainer()
trainer.fit(model, loader, loader)
trainer.test(model, loader)
"""
    )
    fit = named(reader, "fit")
    assert data(fit, "attributes") == {"model": "Model", "rank": 0}
    epochs, batches, validations = (rows(reader, name=name) for name in ("epoch", "batch", "validation"))
    assert [data(row, "used") for row in epochs] == [{"epoch": 0}, {"epoch": 1}]
    assert {row["parent_region_id"] for row in epochs} == {fit["region_id"]}
    ids = [row["region_id"] for row in epochs]
    assert [row["parent_region_id"] for row in batches] == [ids[0]] * 3 + [ids[1]] * 3
    assert [data(row, "attributes")["sanity_check"] for row in validations] == [True, False, False]
    assert [row["parent_region_id"] for row in validations] == [fit["region_id"], *ids]
    assert len(rows(reader, name="test")) == 1
    assert all(row["kind"] == row["name"] and row["status"] == "finished" for row in rows(reader))
    gauges = rows(reader, "region_gauge")
    counts = {name: sum(row["name"] == name for row in gauges) for name in ("loss", "val_loss", "test_loss")}
    assert counts == {"loss": 2, "val_loss": 2, "test_loss": 1}
    assert all(row["value"] >= 0 for row in gauges) and not losses(reader)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_that_fails(run: Run, package: str) -> None:
    if not installed(package):
        pytest.skip(f"{package} is not installed")
    reader = run(
        LIGHTNING.format(package=package)
        + """
try:
    trainer().fit(Model(fail=True), loader)
except ValueError:
    pass
profiler.event("after")
trainer(batches=False).fit(Model(), loader)
"""
    )
    assert [row["status"] for row in rows(reader, name="fit")] == ["error", "finished"]
    assert [row["status"] for row in rows(reader, name="epoch")] == ["error", "finished", "finished"]
    assert [row["status"] for row in rows(reader, name="batch")] == ["finished", "error"]
    assert data(rows(reader, name="fit")[0], "attributes")["message"] == "failed"
    assert named(reader, "after")["parent_region_id"] is None
