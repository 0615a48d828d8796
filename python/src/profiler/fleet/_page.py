"""The HTML page of a site: one file, without scripts. All names are escaped."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from importlib import resources
from typing import Any, Callable, Optional

import pyarrow

from ._charts import Bar, bars, columns, legend
from ._dataset import Dataset
from ._queries import QUERIES
from ._units import text, unit_of

#: Rows of a table on the page; the CSV files have all.
_ROWS = 20
#: Notes on the page.
_NOTES = 100
#: Columns on the page, if not all.
_COLUMNS: dict[str, Sequence[str]] = {
    "jobs": "run user_name project partition name program nodes wall_s cpu_hours unused_cpu_hours cpu_efficiency "
    "gpu_hours energy_j file_read_bytes file_write_bytes".split()
}

Row = dict[str, Any]


def write_page(path: str, dataset: Dataset, engine: str, results: dict[str, pyarrow.Table]) -> None:
    """Writes the results of queries as a page."""
    sections = "".join(_section(name, table) for name, table in results.items())
    links = "".join(f'<li><a href="#{name}">{html.escape(QUERIES[name].title)}</a></li>' for name in results)
    title = f"Site report: {', '.join(map(os.path.basename, dataset.paths))}"
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{html.escape(title)}</title><style>{_style()}</style></head>\n<body>"
        f"<header><h1>{html.escape(title)}</h1><p>{_facts(dataset)}</p><nav><ul>{links}</ul></nav></header>\n"
        f"<main>{sections}</main>\n<footer>{_notes(dataset)}<p>Computed with {html.escape(engine)} on "
        f"{datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC.</p></footer></body></html>\n"
    )
    with open(path, "w", encoding="utf-8") as file:
        file.write(page)


def _style() -> str:
    return resources.files("profiler.fleet").joinpath("page.css").read_text(encoding="utf-8")


def _facts(dataset: Dataset) -> str:
    rows = dataset.sessions.to_pylist()
    starts = [row["start_ts"] for row in rows if row["start_ts"] is not None]
    ends = [row["end_ts"] for row in rows if row["end_ts"] is not None]
    jobs = len({row["run"] for row in rows if not row["is_node"]})
    period = f"{text(min(starts))} to {text(max(ends, default=None))} UTC" if starts else "no times"
    return f"{period} · {len({row['host'] for row in rows}):,} nodes · {jobs:,} jobs"


def _notes(dataset: Dataset) -> str:
    if not dataset.notes:
        return "<p>All runs are complete.</p>"
    items = "".join(f"<li>{html.escape(note)}</li>" for note in dataset.notes[:_NOTES])
    summary = f"{len(dataset.notes):,} runs are not complete or left out"
    return f"<details><summary>{summary}</summary><ul>{items}</ul></details>"


def _section(name: str, table: pyarrow.Table) -> str:
    query = QUERIES[name]
    draw = _CHARTS.get(name)
    rows: list[Row] = table.to_pylist()
    chart = draw(rows) if draw is not None and rows else ""
    first = sorted(rows, key=_ORDER[name], reverse=True) if name in _ORDER else rows
    more = f" of {len(rows):,}" if len(rows) > _ROWS else ""
    count = f"{min(len(rows), _ROWS)}{more} rows · " if rows else ""
    files = f'<a href="{name}.csv">CSV</a> · <a href="{name}.parquet">Parquet</a>'
    columns: Sequence[str] = _COLUMNS[name] if name in _COLUMNS else table.column_names
    body = _table(columns, first[:_ROWS]) if rows else '<p class="more">No rows.</p>'
    return (
        f'<section id="{name}"><h2>{html.escape(query.title)}</h2><p class="help">{_prose(query.help)}</p>'
        f'{chart}{body}<p class="more">{count}{files}</p></section>\n'
    )


def _table(names: Sequence[str], rows: list[Row]) -> str:
    shown = [name for name in names if any(row[name] is not None for row in rows)]
    texts = {name for name in shown if any(isinstance(row[name], str) for row in rows)}

    def cell(tag: str, name: str, content: str) -> str:
        kind = ' class="text"' if name in texts else ""
        return f"<{tag}{kind}>{html.escape(content)}</{tag}>"

    head = "".join(cell("th", name, name.replace("_", " ")) for name in shown)

    lines = ""
    for row in rows:
        lines += f"<tr>{''.join(cell('td', name, text(row[name], unit_of(name))) for name in shown)}</tr>"
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'


def _prose(words: str) -> str:
    return re.sub(r"`(.*?)`", r"<code>\1</code>", html.escape(words))


def _number(row: Row, name: str) -> float:
    return float(row[name] or 0)


#: Rows of these tables are shown in another order than they are stored.
_ORDER: dict[str, Callable[[Row], Any]] = {
    "jobs": lambda row: _number(row, "cpu_hours"),
    "filesystem_pressure": lambda row: _number(row, "data_ops_per_s") + _number(row, "metadata_ops_per_s"),
}


def _figure(caption: str, chart: str, names: Iterable[str] = ()) -> str:
    key = legend(list(names)) if names else ""
    return f"<figure><figcaption>{html.escape(caption)}</figcaption>{chart}{key}</figure>"


def _name(*parts: Optional[str]) -> str:
    return " / ".join(part or "–" for part in parts)


def _accounting(rows: list[Row]) -> str:
    lines = [
        Bar(_name(row["user_name"], row["project"], row["partition"]), [row["cpu_hours"], row["unused_cpu_hours"]])
        for row in rows[:_ROWS]
    ]
    caption = "CPU-hours by user, project and partition"
    return _figure(caption, bars(caption, lines, "h"), ["used", "unused on the nodes of the jobs"])


def _jobs(rows: list[Row]) -> str:
    starts = [row["start_ts"] for row in rows]
    days = (max(starts) - min(starts)).total_seconds() / 86400
    form = "%Y-%m-%d" if days > 3 else "%d %H:00" if days > 0.2 else "%H:%M"
    sums: dict[str, list[float]] = {}
    for row in sorted(rows, key=lambda row: row["start_ts"]):
        of_time = sums.setdefault(row["start_ts"].strftime(form), [0.0, 0.0])
        of_time[0] += _number(row, "cpu_hours")
        of_time[1] += _number(row, "unused_cpu_hours")
    caption = "CPU-hours of jobs by their start"
    lines = [Bar(label, values) for label, values in sums.items()]
    return _figure(caption, columns(caption, lines, "h"), ["used", "unused on the nodes of the jobs"])


def _inefficient(rows: list[Row]) -> str:
    lines = [Bar(_name(row["run"], row["program"]), [row["cpu_efficiency"]]) for row in rows]
    caption = "CPU time of the job per CPU time of its nodes"
    return _figure(caption, bars(caption, lines, "%"))


def _slow(rows: list[Row]) -> str:
    lines = [Bar(row["host"], [row["slowdown"]]) for row in rows[:_ROWS]]
    caption = "Active time per active time of the median node of the job"
    return _figure(caption, bars(caption, lines, "×"))


def _pressure(rows: list[Row]) -> str:
    totals: dict[str, float] = {}
    for row in rows:
        requests = _number(row, "data_ops_per_s") + _number(row, "metadata_ops_per_s")
        totals[row["run"]] = totals.get(row["run"], 0) + requests
    largest = sorted(totals, key=lambda run: totals[run], reverse=True)[:5]
    minutes = sorted({row["minute"] for row in rows})
    size = -(-len(minutes) // 120)
    place = {minute: index // size for index, minute in enumerate(minutes)}
    sums = [[0.0] * (len(largest) + 1) for _ in range(-(-len(minutes) // size))]
    for row in rows:
        index = largest.index(row["run"]) if row["run"] in largest else len(largest)
        requests = _number(row, "data_ops_per_s") + _number(row, "metadata_ops_per_s")
        sums[place[row["minute"]]][index] += requests / size
    form = "%H:%M" if (minutes[-1] - minutes[0]).total_seconds() < 86400 else "%m-%d %H:%M"
    lines = [Bar(minutes[index * size].strftime(form), values) for index, values in enumerate(sums)]
    caption = "Requests per second to file systems"
    return _figure(caption, columns(caption, lines, "/s"), [*largest, "all others"])


def _interference(rows: list[Row]) -> str:
    lines = [
        Bar(_name(row["run"], row["neighbour"]), [row["waited_shared"], row["waited_alone"]]) for row in rows[:_ROWS]
    ]
    caption = "Share of the run queue in the time on CPUs and in the run queue"
    return _figure(caption, bars(caption, lines, "%", side_by_side=True), ["beside the neighbour", "alone"])


def _campaigns(rows: list[Row]) -> str:
    lines = [Bar(row["campaign"], [row["energy_kwh"]]) for row in rows[:_ROWS]]
    caption = "Energy of the processes (model)"
    return _figure(caption, bars(caption, lines, "kWh"))


_CHARTS = {
    "accounting": _accounting,
    "jobs": _jobs,
    "inefficient_jobs": _inefficient,
    "slow_nodes": _slow,
    "filesystem_pressure": _pressure,
    "interference": _interference,
    "campaigns": _campaigns,
}
