"""CPU tensors as users have them, where other tests run kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_kernels() -> Iterator[None]:
    """CPU tensors run PyTorch's operators."""
    from normgen.torch import choice

    wish = os.environ.pop(choice.VARIABLE)
    _forget()
    try:
        yield
    finally:
        os.environ[choice.VARIABLE] = wish
        _forget()


def forget_calls() -> None:
    """Prepare every call again."""
    from normgen.devices import executors

    for each in list(executors._keepers):
        each.forget()


def _forget() -> None:
    from normgen.torch import choice

    choice._cpu_kernels.cache_clear()
    forget_calls()
