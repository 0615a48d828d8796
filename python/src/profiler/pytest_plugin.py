"""`pytest --node-profile`: one run for the session, a region for each test and its phases.

pytest-profiling has the option `--profile`.
"""

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
    group.addoption("--node-profile", action="store_true", help="Profile the session, with a region for each test")
    option = group.addoption
    option("--node-profile-interval", default="1s", metavar="TIME", help="Time between samples [default: 1s]")
    option("--node-profile-out", default="profiles", metavar="DIR", help="Directory for runs [default: profiles]")
    option("--node-profile-slowest", type=int, default=5, metavar="N", help="Tests per table [default: 5]")


# Of a test: names and kinds of the regions inside it.
_PHASES = ("setup", "call", "teardown")


class _Plugin:
    def __init__(self, session: Optional[Session], config: pytest.Config) -> None:
        self.session = session
        self.config = config
        self.failure: Optional[Error] = None
        self.test = self.phase = region("")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        with region(item.nodeid, kind="test") as self.test:
            yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        yield from self._phase("setup")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        yield from self._phase("call")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        yield from self._phase("teardown")

    def _phase(self, name: str) -> Iterator[None]:
        with region(name, kind=name) as self.phase:
            outcome: Any = yield
            kind, error, _ = outcome.excinfo or (None, None, None)
            if kind is not None:
                status = "skipped" if isinstance(error, pytest.skip.Exception) else "error"
                self.test.status = self.phase.status = status
                self.phase.update(exception=kind.__qualname__)

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
        regions = [region for region in regions if region["name"] not in _PHASES]
        for heading, figures, unit in _TABLES:
            tests = []
            for test in regions:
                values = [test[figure] for figure in figures if test.get(figure) is not None]
                if values:
                    tests.append((sum(values), test["name"]))
            tests = [test for test in sorted(tests, reverse=True) if test[0] > 0]
            tests = tests[: self.config.getoption("--node-profile-slowest")]
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
    prefixes = iter(("", "Ki", "Mi", "Gi", "Ti"))
    prefix = next(prefixes)
    while value >= 1024 and prefix != "Ti":
        value, prefix = value / 1024, next(prefixes)
    return f"{value:.1f} {prefix}B"


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("--node-profile"):
        return
    session = None
    # Workers of pytest-xdist find the socket in the environment.
    if not hasattr(config, "workerinput"):
        from ._session import run

        interval: Any = config.getoption("--node-profile-interval")
        session = run(interval, config.getoption("--node-profile-out"))
        try:
            session.start()
        except Error as error:
            raise pytest.UsageError(f"--node-profile: {error}") from None
        # Also when pytest ends before the session does.
        config.add_cleanup(session.stop)
    config.pluginmanager.register(_Plugin(session, config), "profiler-session")
