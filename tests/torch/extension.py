"""A plugin of pytest, by which all calls on the CPU go through the extension in C++:
`python -m pytest -p tests.torch.extension tests/torch`."""

from __future__ import annotations

import pytest

from normgen.torch import native
from tests.fakes.launcher import HostLauncher

LAUNCHER = HostLauncher()
native.launcher_of = LAUNCHER.of
if native.EXTENSION.build() is None:
    raise pytest.UsageError(f"there is no extension: {native.EXTENSION.fault}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what looks at the calls of `Step.run`, which the extension does without."""
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "runs" in names and "launcher" not in names:
            item.add_marker(pytest.mark.skip(reason="it counts calls in Python"))
