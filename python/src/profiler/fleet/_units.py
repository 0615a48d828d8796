"""Values for people: the unit of a column is the end of its name."""

from __future__ import annotations

from datetime import datetime
from typing import Any

_UNITS = {
    "_bytes": "B",
    "_bytes_per_s": "B/s",
    "_ops_per_s": "/s",
    "_hours": "h",
    "_kwh": "kWh",
    "_j": "J",
    "_s": "s",
    "_efficiency": "%",
    "_shared": "%",
    "_alone": "%",
    "share": "%",
    "ratio": "×",
    "slowdown": "×",
    "least": "×",
    "greatest": "×",
}


def unit_of(column: str) -> str:
    """The unit of a column; empty for counts and texts."""
    found = [end for end in _UNITS if column.endswith(end)]
    return _UNITS[max(found, key=len)] if found else ""


def text(value: Any, unit: str = "") -> str:
    """A value with its unit: `1.2 GiB`, `34 %`, `2026-11-20 10:00`."""
    if value is None:
        return "–"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M")
    if not isinstance(value, (int, float)):
        return str(value)
    if unit == "%":
        return f"{100 * value:.1f} %"
    if unit.startswith("B"):
        size, prefix = _scaled(value, 1024, ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
        return f"{size} {prefix}{unit}"
    if unit in ("J", "kWh") and abs(value) >= 1000:
        size, prefix = _scaled(value if unit == "J" else value * 1e3, 1000, ["", "k", "M", "G", "T", "P"])
        return f"{size} {prefix}{unit[-2:] if unit == 'kWh' else unit}"
    if unit == "×":
        return f"{value:.2f} ×"
    number = f"{value:,}" if isinstance(value, int) else _digits(value)
    return f"{number} {unit}".strip()


def _scaled(value: float, step: int, prefixes: list[str]) -> tuple[str, str]:
    place = 0
    while abs(value) >= step and place < len(prefixes) - 1:
        value, place = value / step, place + 1
    return _digits(value), prefixes[place]


def _digits(value: float) -> str:
    """Three significant digits, and no exponent."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"
