"""`%%profile` in a real Jupyter kernel."""

from __future__ import annotations

import base64
import io
import re
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from conftest import rows

import profiler


def execute(directory: Path, *cells: str, allow_errors: bool = False) -> list[list[Any]]:
    """The outputs of each cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    # The kernel of this Python, whichever kernels the user has installed.
    manager = nbclient.client.KernelManager(kernel_name="python3")
    manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    client = nbclient.NotebookClient(
        notebook,
        km=manager,
        timeout=300,
        allow_errors=allow_errors,
        resources={"metadata": {"path": str(directory)}},
    )
    client.execute()
    return [cell.outputs for cell in notebook.cells]


def data(outputs: list[Any], kind: str) -> list[str]:
    return [output["data"][kind] for output in outputs if kind in output.get("data", {})]


def test_plot_and_table_under_the_cell(tmp_path: Path) -> None:
    cell = """
        %%profile -i 50ms -o 'my runs'
        import time
        end = time.process_time() + 0.4
        while time.process_time() < end:
            pass
        answer = 42
        answer
        """.replace("\n        ", "\n").strip()
    _, outputs, after = execute(tmp_path, "%load_ext profiler", cell, "answer + 1")
    assert "42" in data(outputs, "text/plain") and data(after, "text/plain") == ["43"]

    from matplotlib import image

    (png,) = data(outputs, "image/png")
    pixels = image.imread(io.BytesIO(base64.b64decode(png)))
    assert pixels.shape[0] > 200 and pixels.shape[1] == 800 and pixels.std() > 0.01
    (table,) = data(outputs, "text/html")
    figures = dict(re.findall(r"<th>(.*?)</th><td>(.*?)</td>", table))
    assert list(figures)[:2] == ["CPU time", "run queue"]
    (run,) = (path for path in (tmp_path / "my runs").iterdir() if path.is_dir())
    assert f"my runs/{run.name}\n" in [output.get("text") for output in outputs]
    total = profiler.open(run).summary()["total"]
    assert figures["CPU time"] == f"{total['cpu_s']:.3f} s" and 0.4 <= total["cpu_s"] < 2
    assert figures["peak memory, at least"] == f"{total['peak_memory_bytes'] / 2**20:.1f} MiB"
    assert rows(profiler.open(run), "process")


def test_errors_of_cells_and_options(tmp_path: Path) -> None:
    outputs = execute(
        tmp_path,
        "%load_ext profiler",
        "%%profile\nraise ValueError('of the cell')",
        "%%profile --nosuch\n1",
        "%%profile -i 1us\n1",
        allow_errors=True,
    )
    errors = [output for output in outputs[1] if output["output_type"] == "error"]
    assert (errors[-1]["ename"], errors[-1]["evalue"]) == ("ValueError", "of the cell")
    assert len(list((tmp_path / "profiles").glob("*/run.json"))) == 1
    # IPython shows a UsageError as one line.
    texts = ["".join(output.get("text", "") for output in cell) for cell in outputs]
    assert texts[2] == (
        "UsageError: unrecognized arguments: --nosuch; usage: %%profile [-i INTERVAL] [-o DIRECTORY]\n"
    )
    assert texts[3].startswith("UsageError: invalid value '1us'") and texts[3].count("\n") == 1


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide = "import sys; sys.modules['matplotlib'] = None"
    _, _, outputs = execute(tmp_path, hide, "%load_ext profiler", "%%profile\n1")
    assert "no plot: matplotlib is not installed" in "".join(output.get("text", "") for output in outputs)
    assert len(data(outputs, "text/html")) == 1
