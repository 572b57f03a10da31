"""A plugin of pytest for the processes of `make test-gpu`: a part of the tests, for so long, told as it goes.

Each line of the report is one event, so that it says what ran even where the process ends by a fault.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

NO_TIME = "no time was left"
KNOWN = "known"  # the outcome of a test that is expected to fail, and does


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="0/1", help="which of how many processes this is")
    parser.addoption("--seconds", type=float, default=60.0, help="after which no test begins")
    parser.addoption("--order", default="0", help="what the order of tests is drawn from")
    parser.addoption("--thorough", action="store_true", help="run thorough cases too")
    parser.addoption("--again", type=Path, help="a file with the only tests to run, if there are any")
    parser.addoption("--report", type=Path, help="the file of events")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Reporter(config))


class _Reporter:
    def __init__(self, config: pytest.Config) -> None:
        options = config.option
        self.part, self.of = map(int, options.part.split("/"))
        self.thorough = options.thorough
        self.order, self.end = options.order, time.monotonic() + options.seconds
        self.again = options.again.read_text().split("\n") if options.again.stat().st_size else []
        self.file = options.report.open("a", buffering=1)

    def tell(self, **event: Any) -> None:
        self.file.write(json.dumps(event) + "\n")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The tests of this process, in an order in which any that time cuts off are drawn at random."""
        chosen = [item for item in items if item.get_closest_marker("gpu")]
        if not self.thorough:
            usual = [item for item in chosen if not item.get_closest_marker("thorough")]
            self.tell(thorough=len(chosen) - len(usual))
            chosen = usual
        drawn = sorted(
            chosen, key=lambda item: hashlib.sha256(f"{self.order} {item.nodeid}".encode()).digest()
        )
        again = [item for item in drawn if item.nodeid in self.again]
        items[:] = again if self.again else drawn[self.part :: self.of]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if time.monotonic() > self.end:
            pytest.skip(NO_TIME)
        self.tell(begins=item.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._tell_of(report, 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._tell_of(report, report.duration)

    def _tell_of(self, report: Any, seconds: float) -> None:
        reason, outcome = "", report.outcome
        if report.skipped and hasattr(report, "wasxfail"):
            reason, outcome = report.wasxfail.removeprefix("reason: "), KNOWN
        elif report.skipped:
            reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        elif report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            reason = crash.message if crash is not None else str(report.longrepr)
        self.tell(test=report.nodeid, outcome=outcome, reason=reason[:2000], seconds=round(seconds, 2))
        for name, value in getattr(report, "user_properties", ()):
            if name == "note":
                self.tell(note=value)
