"""Data frames of perfmon in HDF5, pickle and ORC, from the files of `profiler export perfmon`.

    profiler export perfmon profiles/demo -o demo
    python -m profiler.perfmon hdf5 demo -o metrics.h5
    python -c "import pandas; print(pandas.read_hdf('metrics.h5', 'cpu_metrics_demo'))"
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Optional

from . import _replace
from ._errors import Error, reason
from ._files import Path as AnyPath

if TYPE_CHECKING:
    import pyarrow

_METRICS = ("cpu_metrics", "perf_metrics", "nv_gpu_metrics")


class OutputError(Error):
    """A file that cannot be written."""


def _frames(directory: Path) -> dict[str, pyarrow.Table]:
    """The data frame of each metric."""
    try:
        from pyarrow import ArrowException, feather
    except ImportError:
        raise Error("pyarrow is not installed: pip install node-profiler[hdf5]") from None
    frames = {}
    for metric in _METRICS:
        path = directory / f"{metric}.feather"
        # The documents and the data frames are written together.
        if path.exists() or (directory / "metrics" / f"{metric}.json").exists():
            try:
                frames[metric] = feather.read_table(path)
            except (ArrowException, OSError) as error:
                raise Error(f"{path}: {reason(error)}") from None
            if frames[metric].column_names[:2] != ["Host", "Timestamps"]:
                raise Error(f"{path}: not a data frame of perfmon")
    if not frames:
        raise Error(f"{directory}: not the directory of `profiler export perfmon`: no data frames")
    return frames


def _key(metric: str, frame: pyarrow.Table, jobid: Optional[str]) -> str:
    stored = (frame.schema.metadata or {}).get(b"perfmon.key", metric.encode()).decode()
    key = stored if jobid is None else f"{metric}_{jobid}"
    if "/" in key or key.endswith("_"):
        raise Error(f"job {key[len(metric) + 1:]!r}: a key of an HDF5 file needs a name without `/`")
    return key


def to_hdf(directory: AnyPath, path: Optional[AnyPath] = None, jobid: Optional[str] = None) -> Path:
    """Write the data frames of an export into an HDF5 file, `metrics.h5` of the export by default.

    The key of a frame is `<metric>_<jobid>`. A file that exists keeps its other keys. Several
    processes can write into one file at once.
    """
    directory = Path(directory)
    path = directory / "metrics.h5" if path is None else Path(path)
    frames = {_key(metric, frame, jobid): _to_pandas(frame) for metric, frame in _frames(directory).items()}
    try:
        from ._hdf5 import write
    except Exception as error:
        # Not only ImportError, if tables was built for another version of NumPy.
        raise Error(f"tables cannot be imported: {reason(error)}: pip install node-profiler[hdf5]") from None
    with _writing(path):
        _replace.update(path, lambda old, new: write(frames, old, new))
    return path


def _to_pandas(frame: pyarrow.Table) -> Any:
    try:
        table = frame.to_pandas()
    except ImportError:
        raise Error("pandas is not installed: pip install node-profiler[hdf5]") from None
    # Every version of pandas reads texts as objects.
    table["Host"] = table["Host"].astype(object)
    return table


def to_pickle(directory: AnyPath, output: Optional[AnyPath] = None, force: bool = False) -> list[Path]:
    """Write each data frame as `<metric>.pkl` into a directory, that of the export by default.

    Use it only for programs that demand it: loading a pickle executes the code that it has.
    """
    return _write_all(directory, output, force, "pkl", lambda frame, path: _to_pandas(frame).to_pickle(path))


def to_orc(directory: AnyPath, output: Optional[AnyPath] = None, force: bool = False) -> list[Path]:
    """Write each data frame as `<metric>.orc` into a directory, that of the export by default."""

    def write(frame: pyarrow.Table, path: Path) -> None:
        from pyarrow import BufferOutputStream, orc

        # In memory, because Arrow aborts the process when it cannot write a file.
        content = BufferOutputStream()
        orc.write_table(frame, content)
        path.write_bytes(content.getvalue())

    return _write_all(directory, output, force, "orc", write)


def _write_all(
    directory: AnyPath,
    output: Optional[AnyPath],
    force: bool,
    extension: str,
    write: Callable[[pyarrow.Table, Path], None],
) -> list[Path]:
    frames = _frames(Path(directory))
    target = Path(directory if output is None else output)
    paths = [target / f"{metric}.{extension}" for metric in frames]
    # The names appear when all files are complete.
    with _writing(target), ExitStack() as files:
        target.mkdir(parents=True, exist_ok=True)
        new = []
        for frame, path in zip(frames.values(), paths):
            if os.path.lexists(path) and not force:
                raise OutputError(f"{path} exists; --force replaces it")
            new.append(files.enter_context(_replace.temporary(path)))
            write(frame, new[-1])
            _replace.synchronize(new[-1])
        for file, path in zip(new, paths):
            os.replace(file, path)
    return paths


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Failures as one line."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        # PyTables and Arrow have exceptions of many classes.
        raise OutputError(f"{path}: {reason(error)}") from None


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m profiler.perfmon", description="Data frames of `profiler export perfmon` in other formats."
    )
    commands = parser.add_subparsers(dest="format", required=True, metavar="FORMAT")
    for name, help in {
        "hdf5": "an HDF5 file with the keys <metric>_<jobid>; a file that exists keeps its other keys",
        "orc": "a file for each metric",
        "pickle": "a file for each metric; loading a pickle executes the code that it has",
    }.items():
        command = commands.add_parser(name, help=help, description=help)
        command.add_argument("directory", metavar="DIR", help="directory of `profiler export perfmon RUN -o DIR`")
        if name == "hdf5":
            command.add_argument("-o", "--output", metavar="FILE", help="default: metrics.h5 in DIR")
            command.add_argument("--jobid", metavar="ID", help="default: that of the export")
        else:
            command.add_argument("-o", "--output", metavar="OUTPUT", help="directory; default: DIR")
            command.add_argument("--force", action="store_true", help="replace files that exist")
    return parser


def main() -> int:
    options = _arguments().parse_args()
    try:
        if options.format == "hdf5":
            to_hdf(options.directory, options.output, options.jobid)
        else:
            write = to_orc if options.format == "orc" else to_pickle
            write(options.directory, options.output, options.force)
    except Error as error:
        print(f"profiler: {error}", file=sys.stderr)
        return 5 if isinstance(error, OutputError) else 2
    return 0


if __name__ == "__main__":
    code = main()
    if code:
        # The HDF5 library can crash when it closes a file for which the disk has no space.
        sys.stderr.flush()
        os._exit(code)
