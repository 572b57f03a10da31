"""What every part of the suite shares: marks, golden texts, and what the summary says of the CUDA runtime."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from difflib import unified_diff
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

from tests.fakes.machine import COMPILERS, RAN_ON, need_compiler
from tests.kernels import names_executor
from tests.sampling import one_in

HAS_TORCH = find_spec("torch") is not None
GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden texts anew")
    parser.addoption(
        "--one-in", type=int, default=1, help="of the cases of each test, run one in so many, or one at least"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--update-golden") and config.getoption("numprocesses", None):
        raise pytest.UsageError("several tests write one file: --update-golden goes without -n")


@pytest.hookimpl(hookwrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Mark what compiles kernels, for the host or with a CUDA compiler; thin out what -m and -k leave."""
    for item in items:
        compiles = any(map(item.get_closest_marker, COMPILERS))
        if compiles or (isinstance(item, pytest.Function) and names_executor(item)):
            item.add_marker("kernels")
    yield
    kept = one_in(config.getoption("one_in"), [item.nodeid for item in items])
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = [item for item in items if item.nodeid in kept]


def pytest_collection_finish() -> None:
    """What is collected stays: the garbage collector looks at it no more."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that is marked by a CUDA compiler has it."""
    for name in COMPILERS:
        if item.get_closest_marker(name):
            need_compiler(name)


@pytest.fixture(autouse=True)
def _kernels_are_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tests that compile kernels are left out, none compiles any: what does lacks the mark."""
    if "not kernels" in request.config.option.markexpr:
        monkeypatch.setattr("normgen.devices.host.executor.HostExecutor.function", _unmarked)


def _unmarked(*_: object) -> NoReturn:
    pytest.fail("this test runs a kernel on the host: mark it, or its module, with pytest.mark.kernels")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: the text is that of tests/golden/<name>."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        how = f"python -m pytest '{request.node.nodeid}' --update-golden"
        if not path.exists():
            said = f"tests/golden/{name} is missing; create it with\n    {how}\nand read what it holds"
            pytest.fail(said, pytrace=False)
        before = path.read_text(encoding="utf-8")
        if text != before:
            lines = unified_diff(
                before.splitlines(), text.splitlines(), f"tests/golden/{name}", "now", lineterm=""
            )
            pytest.fail("\n".join([*lines, f"if it is meant: {how}"]), pytrace=False)

    return check


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests ran on which launcher, and what was left out. Reports come from every worker."""
    if not HAS_TORCH:
        terminalreporter.write_line("Left out: tests/torch, since PyTorch is not installed (make test-torch)")
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    ran = Counter(
        value
        for report in reports
        for name, value in report.user_properties
        if name == RAN_ON and report.when == "call"
    )
    if ran:
        told = ", ".join(f"{count} on {launcher}" for launcher, count in sorted(ran.items()))
        terminalreporter.write_line(f"Tests of the CUDA runtime: {told}")
