"""Plots over time with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._errors import Error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ._reader import Column, Table

# Columns of `timeline` that are shown if they have values.
USUAL = [
    "target_cpu_percent",
    # Unlike PSS, it has a value at every sample.
    "target_rss_sum",
    "target_file_read_bytes",
    "target_file_write_bytes",
    "target_block_read_bytes",
    "target_block_write_bytes",
    "target_net_tx_bytes",
    "target_net_rx_bytes",
    "gpu_utilization_max",
]
# Seconds and bytes rather than their multiples.
_SCALES = {"ns": (1e-9, "s"), "bytes": (2.0**-20, "MiB"), "uj": (1e-6, "J"), "uJ": (1e-6, "J")}


def _scale(column: Column) -> tuple[float, str]:
    factor, unit = _SCALES.get(column.unit, (1.0, column.unit))
    if column.kind == "counter":
        unit = f"{unit if unit != '1' else ''}/s"
    return factor, unit if unit != "1" else ""


def plot(table: Table, names: list[str]) -> Figure:
    """A figure with one row for each unit. Counters are divided by their interval."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
    from matplotlib.figure import Figure

    known = {column.name: column for column in table.columns}
    if "ts" not in known:
        raise Error(f"table {table.name} has no time")
    for name in names:
        if name not in known:
            raise Error(f"table {table.name} has no column {name!r}")
        if known[name].type in ("VARCHAR", "TIMESTAMPTZ") or known[name].type.endswith("[]"):
            raise Error(f"table {table.name}: column {name!r} is not a number")
    if not names:
        names = [name for name in USUAL if name in known]
        if not names:
            raise Error(f"plot() of table {table.name} needs names of columns")
    keys = [name for name in ("ts", "interval_ns", "run", "host") if name in known]
    rows: list[dict[str, Any]] = sorted(table.arrow([*keys, *names]).to_pylist(), key=lambda row: row["ts"])

    if len({(row["ts"], row["run"], row["host"]) for row in rows}) < len(rows):
        raise Error(f"table {table.name} has several rows at a time: add them up with sql()")

    panels: dict[str, list[str]] = {}
    for name in names:
        if any(row[name] is not None for row in rows):
            # CPUs and other plain numbers do not share an axis.
            unit = _scale(known[name])[1]
            panels.setdefault(unit if unit not in ("", "/s") else f"{unit} {name}", []).append(name)
    if not panels:
        raise Error(f"table {table.name} has no values to plot")

    sources = sorted({(row["run"], row["host"]) for row in rows})
    figure = Figure(figsize=(8, 1.8 * len(panels) + 0.4), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (unit, shown) in zip(all_axes, panels.items()):
        for name in shown:
            factor = _scale(known[name])[0]
            for source in sources:
                own = [row for row in rows if (row["run"], row["host"]) == source]
                values = [_value(row, known[name], factor) for row in own]
                label = name if len(sources) == 1 else f"{name} {source[0]} {source[1]}"
                # A sample stands for the time before it.
                axes.plot([row["ts"] for row in own], values, drawstyle="steps-pre", label=label)
        axes.set_ylabel(unit.split(" ")[0])
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
        # Above the lines, which it would hide.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncol=2, frameon=False, fontsize="small")
        axes.margins(x=0)
    locator = AutoDateLocator()
    all_axes[-1].xaxis.set_major_locator(locator)
    all_axes[-1].xaxis.set_major_formatter(ConciseDateFormatter(locator))
    return figure


def _value(row: dict[str, Any], column: Column, factor: float) -> float:
    value = row[column.name]
    if value is None:
        return float("nan")
    if column.kind == "counter":
        if not row["interval_ns"]:
            return float("nan")
        factor *= 1e9 / row["interval_ns"]
    return float(value * factor)
