"""Where the tests of device arrays run: on the imaginary driver."""

from __future__ import annotations

from tests.runtime.conftest import driver

__all__ = ["driver"]
