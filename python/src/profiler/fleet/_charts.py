"""Charts as SVG, without scripts."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import NamedTuple, Optional

from ._units import text

_WIDTH = 900
_LEFT = 220
_RIGHT = 80
_ROW = 20


class Bar(NamedTuple):
    label: str
    #: Parts of the bar, from left to right.
    values: Sequence[Optional[float]]


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to a limit."""
    if most <= 0 or not math.isfinite(most):
        return [0.0]
    step = 10 ** math.floor(math.log10(most))
    step = next(size * step for size in (0.2, 0.5, 1, 2) if most / (size * step) <= 6)
    return [number * step for number in range(int(most / step * (1 + 1e-9)) + 1)]


def _escape(label: str, limit: int) -> str:
    return html.escape(label if len(label) <= limit else label[: limit - 1] + "…")


def _svg(height: float, parts: list[str], title: str) -> str:
    name = html.escape(title)
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{name}">{"".join(parts)}</svg>'


def _rect(color: int, x: float, y: float, width: float, height: float, tip: str) -> str:
    size = f'width="{width:.1f}" height="{height:.1f}"'
    return f'<rect class="c{color}" x="{x:.1f}" y="{y:.1f}" {size}>{tip}</rect>'


def legend(names: Sequence[str]) -> str:
    key = '<svg viewBox="0 0 10 10" aria-hidden="true"><rect width="10" height="10" class="c{}"/></svg>'
    items = "".join(f"<li>{key.format(index)} {html.escape(name)}</li>" for index, name in enumerate(names))
    return f'<ul class="legend">{items}</ul>'


def bars(title: str, rows: Sequence[Bar], unit: str, side_by_side: bool = False) -> str:
    """Horizontal bars. The parts of a bar follow one another, or are below one another."""
    totals = [[value or 0 for value in row.values] for row in rows]
    most = max((max(values) if side_by_side else sum(values) for values in totals), default=0)
    ticks = _ticks(most)
    scale = (_WIDTH - _LEFT - _RIGHT) / max(most, ticks[-1], 1e-300)
    height = _ROW * len(rows) + 22
    parts = []
    for tick in ticks:
        x = _LEFT + tick * scale
        parts.append(f'<path class="grid" d="M{x:.1f} 0V{height - 20}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 6}" text-anchor="middle">{text(tick, unit)}</text>')
    for number, row in enumerate(rows):
        y, x = number * _ROW, float(_LEFT)
        label = _escape(row.label, 36)
        parts.append(f'<text class="lane" x="{_LEFT - 6}" y="{y + 14}" text-anchor="end">{label}</text>')
        thickness = (_ROW - 6) / len(row.values) if side_by_side else _ROW - 6
        for index, value in enumerate(row.values):
            width = (value or 0) * scale
            tip = f"<title>{html.escape(row.label)}: {text(value, unit)}</title>"
            top = y + 3 + (index * thickness if side_by_side else 0)
            left = _LEFT if side_by_side else x
            parts.append(_rect(index, left, top, width, thickness, tip))
            x = max(x, left + width)
        values = [value for value in row.values if value is not None]
        shown = text(max(values) if side_by_side else sum(values), unit) if values else "–"
        parts.append(f'<text class="tick" x="{x + 5:.1f}" y="{y + 14}">{shown}</text>')
    return _svg(height, parts, title)


def columns(title: str, rows: Sequence[Bar], unit: str) -> str:
    """Stacked columns over time."""
    height, base, left = 190, 165, 60
    most = max((sum(value or 0 for value in row.values) for row in rows), default=0)
    ticks = _ticks(most)
    scale = (base - 8) / max(most, ticks[-1], 1e-300)
    step = (_WIDTH - left - 10) / max(len(rows), 1)
    parts = []
    for tick in ticks:
        y = base - tick * scale
        parts.append(f'<path class="grid" d="M{left} {y:.1f}H{_WIDTH - 10}"/>')
        parts.append(f'<text class="tick" x="{left - 5}" y="{y + 3:.1f}" text-anchor="end">{text(tick, unit)}</text>')
    every = -(-len(rows) // 9)
    for number, row in enumerate(rows):
        x, y = left + number * step, float(base)
        for index, value in enumerate(row.values):
            size = (value or 0) * scale
            y -= size
            tip = f"<title>{html.escape(row.label)}: {text(value, unit)}</title>"
            parts.append(_rect(index, x + step * 0.08, y, step * 0.84, size, tip))
        if number % every == 0:
            parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 8}">{_escape(row.label, 16)}</text>')
    return _svg(height, parts, title)
