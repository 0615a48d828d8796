"""The Python of docs/python.md, run unchanged as one program."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import losses, rows, run_script

import profiler

PACKAGE = Path(__file__).parent.parent
MANUAL = PACKAGE.parent / "docs/python.md"


def test_examples_of_the_manual(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="the newest Python only")
    blocks = re.findall(r"^```python\n(.*?)^```", MANUAL.read_text(), re.M | re.S)
    assert len(blocks) >= 8
    monkeypatch.setenv("PYTHONWARNINGS", "error:::__main__")
    reader = run_script(tmp_path, "\n".join(blocks))

    demo = profiler.open(tmp_path / "profiles/demo")
    (fit,) = rows(demo)
    assert (fit["name"], json.loads(fit["used"])) == ("fit", {"epochs": 3})
    assert (tmp_path / "timeline.png").stat().st_size > 10_000
    (other,) = [path for path in (tmp_path / "profiles").iterdir() if path.is_dir() and path.name != "demo"]
    assert profiler.open(other).metadata[0]["config"]["labels"] == {"env": "test"}
    assert [row["name"] for row in rows(profiler.open(other))] == ["load"]

    found = rows(reader)
    names = [row["name"] for row in found]
    assert names[:7] == ["prepare", "load", *["batch"] * 3, "checkpoint", "compile"]
    prepare, load = found[:2]
    assert load["parent_region_id"] == prepare["region_id"] and json.loads(load["used"]) == {"path": "in.csv"}
    assert (json.loads(load["generated"]), load["kind"]) == ({"rows": 42}, "io")
    search = names.index("search")
    assert {row["parent_region_id"] for row in found[search + 1 : search + 3]} == {found[search]["region_id"]}
    (convert,), (converted,) = rows(reader, name="convert"), rows(reader, name="converted")
    assert converted["parent_region_id"] == convert["region_id"] and converted["pid"] != convert["pid"]
    assert {row["kind"] for row in found if row["name"] == "sum"} == {"dask"}
    # Two by the pool; two by joblib, each of them also a task.
    assert names.count("load") == 1 + 2 + 2 * 2 and names[-2:] == ["squares", "square"]
    assert [row["value"] for row in rows(reader, "region_gauge")] == pytest.approx([1, 1 / 2, 1 / 3])
    assert not losses(reader)


def test_readme_has_the_first_example() -> None:
    first = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
    found = [first.search(path.read_text()) for path in (PACKAGE / "README.md", MANUAL)]
    assert found[0] and found[1] and found[0][1] == found[1][1]


def test_options_and_names_of_the_manual(example: profiler.Reader) -> None:
    """Names in running text exist."""
    text = MANUAL.read_text()
    for extra in re.findall(r"node-profiler\[(\w+)\]", text):
        assert f"\n{extra} = [" in (PACKAGE / "pyproject.toml").read_text()
    for name in re.findall(r"`profiler\.(\w+)\(", text):
        assert hasattr(profiler, name), name
    for name in re.findall(r"`r\.(\w+)\(\)`", text):
        assert callable(getattr(example, name)), name
    modules = re.findall(r"^\| `profiler\.(\w+)` \|", text, re.M)
    assert len(modules) == 5
    for name in modules:
        assert (PACKAGE / f"src/profiler/{name}.py").is_file(), name
    assert "profiler.flowcept" in text
    names = text.split("so that only the import changes:")[1].split(". A workflow")[0]
    from profiler import flowcept

    assert sorted(re.findall(r"`(\w+)`", names)) == sorted(flowcept.__all__)
    done = subprocess.run([sys.executable, "-m", "pytest", "--help"], capture_output=True, text=True)
    for option in re.findall(r"`(--node-profile-\w+)`", text):
        assert option in done.stdout, option
