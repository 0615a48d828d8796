"""Puts the binary into the wheel: PROFILER_BINARY=target/release/profiler python -m build --wheel."""

from __future__ import annotations

import os
import platform
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Binary(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        binary = os.environ.get("PROFILER_BINARY")
        if binary:
            # pip installs it as `profiler` beside `python`.
            build_data["shared_scripts"] = {os.path.abspath(binary): "profiler"}
            machine = os.environ.get("PROFILER_BINARY_MACHINE", platform.machine())
            build_data["tag"] = f"py3-none-{os.environ.get('PROFILER_BINARY_PLATFORM', 'linux')}_{machine}"
