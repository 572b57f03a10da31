"""Modules that are one whole for what looks into modules: `torch.fx` and TorchScript."""

from __future__ import annotations

from typing import Any

import torch


class Whole:
    """A base of all modules here."""

    def __prepare_scriptable__(self) -> Any:
        """RuntimeError: `torch.jit.script` asks for what it may compile the source of."""
        raise RuntimeError(
            f"TorchScript does not support {type(self).__name__}, a module of normgen: script PyTorch's own "
            f"modules, or use torch.jit.trace or torch.export"
        )


def are_tensors(*given: Any) -> bool:
    """Whether a module is called with tensors. Otherwise `instead` says what it returns."""
    return all(isinstance(each, torch.Tensor) for each in given)


def instead(module: Any, **given: Any) -> Any:
    """The result of a call with what is no tensor: one node where `torch.fx` traces the module that calls
    this one, and a TypeError elsewhere."""
    proxies = [each for each in given.values() if isinstance(each, torch.fx.Proxy)]
    name = type(module).__name__
    if not proxies:
        fault, wrong = next((n, each) for n, each in given.items() if not isinstance(each, torch.Tensor))
        raise TypeError(f"{name} takes tensors, but {fault} is of type {type(wrong).__name__}")
    tracer = proxies[0].tracer
    path = tracer.path_of_module(module)
    if not path:
        raise TypeError(
            f"torch.fx cannot trace {name} itself, only a module that contains it: trace that module"
        )
    return tracer.create_proxy("call_module", path, tuple(given.values()), {})
