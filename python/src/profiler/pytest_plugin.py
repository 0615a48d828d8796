"""`pytest --profile`: one run for the session, a region for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

import pytest

from ._errors import Error
from ._marks import region

if TYPE_CHECKING:
    from ._session import Session

# Heading, figure of `profiler summary`, and its unit.
_TABLES = [
    ("CPU time", ["region_cpu_s"], "s"),
    ("files and devices", ["region_file_read_bytes", "region_file_write_bytes"], "bytes"),
    ("run queue", ["region_runqueue_s"], "s"),
]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("profiler")
    group.addoption("--profile", action="store_true", help="Profile the session, with a region for each test")
    group.addoption("--profile-interval", default="1s", metavar="TIME", help="Time between samples [default: 1s]")
    group.addoption("--profile-out", default="profiles", metavar="DIR", help="Directory for runs [default: profiles]")
    group.addoption("--profile-slowest", type=int, default=5, metavar="N", help="Tests per table [default: 5]")


class _Plugin:
    def __init__(self, session: Optional[Session], config: pytest.Config) -> None:
        self.session = session
        self.config = config
        self.failure: Optional[Error] = None

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with region(item.nodeid, kind="test"):
            yield

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        if self.session is not None:
            try:
                self.session.stop()
            except Error as error:
                self.failure = error

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.session is None:
            return
        write = terminalreporter.write_line
        terminalreporter.section("profile")
        if self.failure is not None:
            write(str(self.failure))
        try:
            regions = self.session.summary()["regions"]
        except Error as error:
            write(str(error))
            return
        for heading, figures, unit in _TABLES:
            tests = []
            for test in regions:
                values = [test[figure] for figure in figures if test.get(figure) is not None]
                if values:
                    tests.append((sum(values), test["name"]))
            tests = [test for test in sorted(tests, reverse=True) if test[0] > 0]
            tests = tests[: self.config.getoption("--profile-slowest")]
            if tests:
                write(f"most {heading}:")
            for value, name in tests:
                write(f"{_format(value, unit):>10}  {name}")
        unknown = sum(test.get("region_cpu_s") is None for test in regions)
        if unknown:
            write(f"{unknown} tests were too short for figures")
        write(f"run: {self.session.path}")


def _format(value: float, unit: str) -> str:
    if unit == "s":
        return f"{value:.3f} s"
    for prefix in ("", "Ki", "Mi", "Gi"):
        if value < 1024:
            break
        value /= 1024
    else:
        prefix = "Ti"
    return f"{value:.1f} {prefix}B"


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--profile"):
        return
    session = None
    # Workers of pytest-xdist find the socket in the environment.
    if not hasattr(config, "workerinput"):
        from ._session import run

        session = run(config.getoption("--profile-interval"), config.getoption("--profile-out"))
        try:
            session.start()
        except Error as error:
            raise pytest.UsageError(f"--profile: {error}") from None
        # Also when pytest ends before the session does.
        config.add_cleanup(session.stop)
    config.pluginmanager.register(_Plugin(session, config), "profiler-session")
