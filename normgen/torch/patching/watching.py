"""What a forward does beside its result: what it reads of its module and changes there, and by which steps it
comes to its result."""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from inspect import isfunction
from typing import Any

import torch
from torch.nn import Module
from torch.overrides import TorchFunctionMode

from normgen.torch.patching.effects import is_constant, named

MISSING, METHOD = "(missing)", "(a method)"  # what is watched of a name that has no value
LARGEST_DIM = 5  # whole numbers up to this may say a dimension; others say a length

Watched = tuple[tuple[str, Any], ...]  # names of a module, and what they are there

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.memory_format)


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_plain(value: Any) -> bool:
    """Whether a value can only change by being replaced."""
    return all(map(is_plain, value)) if isinstance(value, tuple) else isinstance(value, (*_PLAIN, Enum))


def is_as_watched(module: Module, watched: Watched) -> bool:
    """Whether what a forward was seen to read of its module is what it was."""
    for name, value in watched:
        if value == METHOD:
            # Compilers hold on to what a method is, and not to that it is no attribute of the module.
            if name in module.__dict__ or isfunction(getattr(module, name)):
                return False
        else:
            now = getattr(module, name, MISSING)
            if now is not value and (type(now) is not type(value) or now != value):
                return False
    return True


class Watch:
    """What the forward of a class does to modules of it. `made`: a class of such modules, whose forward is
    watched; `read` and `kept`: names that it reads and changes."""

    def __init__(self, cls: type[Module]) -> None:
        self.cls: Any = cls
        self.read: set[str] = set()
        self.kept: set[str] = set()
        self._on = False
        watch, get = self, cls.__getattr__

        def note(self: Any, name: str, into: set[str]) -> Any:
            if watch._on:
                into.add(name)
            return super(watch.made, self)

        def get_missing(self: Any, name: str) -> Any:
            # What PyTorch reads to find a parameter is no concern of the forward.
            on, watch._on = watch._on, False
            try:
                return get(self, name)
            finally:
                watch._on = on

        members = {
            "__getattribute__": lambda self, name: note(self, name, watch.read).__getattribute__(name),
            "__setattr__": lambda self, name, value: note(self, name, watch.kept).__setattr__(name, value),
            "__delattr__": lambda self, name: note(self, name, watch.kept).__delattr__(name),
            "__getattr__": get_missing,
        }
        kind: Any = type(cls)
        self.made: Any = kind(cls.__name__, (cls,), members)

    def watched(self, present: Container[str], absent: Iterable[str], settings: Mapping[str, Any]) -> Watched:
        """What the forward read, but for parameters and buffers that are there: those may change."""
        found: dict[str, Any] = dict.fromkeys(absent)
        for name in sorted(self.read - {"training", *absent}):
            if name not in present and not _is_special(name):
                value = settings.get(name, inspect.getattr_static(self.cls, name, MISSING))
                if isfunction(value) or is_plain(value):
                    found[name] = METHOD if isfunction(value) else value
        return tuple(found.items())

    def doubt(self, own: Container[str]) -> str:
        """Why a forward may do more than compute; "" where it does not. `own`: names of its modules."""
        if self.kept:
            return f"has side effects: it changes {', '.join(sorted(self.kept))}"
        if unseen := sorted(self._unseen(own)):
            return f"reads state that may change between calls: {', '.join(unseen)}"
        return ""

    def _unseen(self, own: Container[str]) -> Iterator[str]:
        """Names of what the forward, and methods that it calls, read and nobody can watch."""
        functions = [self.cls.forward]
        for name in self.read - {"training"}:
            value = inspect.getattr_static(self.cls, name, MISSING)
            if _is_routine(value):
                functions += [value]
            elif name not in own and value is not MISSING and not is_plain(value) and not _is_special(name):
                yield name
        for function in functions:
            plain = inspect.unwrap(getattr(function, "fget", getattr(function, "__func__", function)))
            if isfunction(plain) and not plain.__module__.startswith("torch."):
                yield from (name for name, value in named(plain) if not is_constant(value))

    @contextmanager
    def of(self, module: Module, *tensors: torch.Tensor) -> Iterator[None]:
        """Watches a call, which is to leave its module, the tensors and the random numbers as they are."""
        homes = [object.__getattribute__(module, "__dict__")]
        homes += [homes[0]["_parameters"], homes[0]["_buffers"], *_spaces(self.made.__mro__)]
        before = [dict(home) for home in homes]
        copies = [tensor.detach().clone() for tensor in tensors]
        drawn = torch.get_rng_state()
        self._on = True
        try:
            yield
        finally:
            self._on = False
            for home, old in zip(homes, before, strict=True):
                names = {name for name in {*home, *old} if home.get(name) is not old.get(name)}
                self.kept |= {name for name in names if not name.startswith("__")}
            if not all(is_same(*each) for each in zip(tensors, copies, strict=True)):
                self.kept.add("tensors")
            if not torch.equal(drawn, torch.get_rng_state()):
                self.kept.add("random numbers")


def _spaces(classes: tuple[type, ...]) -> Iterator[Any]:
    """Where a class and those that it derives from, and their methods, have names."""
    for cls in classes[: classes.index(Module)]:
        yield vars(cls)
        forward = vars(cls).get("forward")
        yield getattr(forward, "__globals__", {})


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name != "__dict__"


def _is_routine(value: Any) -> bool:
    return inspect.isroutine(value) or isinstance(value, property)


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether tensors have the same values, where NaN is one."""
    return (
        a.dtype is b.dtype and a.shape == b.shape and torch.equal(*(_bits(each.detach()) for each in (a, b)))
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(_WORDS[tensor.itemsize])


class Path(TorchFunctionMode):  # type: ignore[misc]
    """Notes the functions of PyTorch that are called, with what they are given beside tensors. A whole number
    that may be a length is noted as one. `lengths`: those of the input."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        super().__init__()
        self.lengths = lengths
        self.steps: list[Any] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.steps.append((function, self._noted(args), self._noted(kwargs or {})))
        return function(*args, **(kwargs or {}))

    def _noted(self, given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            return torch.Tensor
        if isinstance(given, (tuple, list)):
            return [self._noted(each) for each in given]
        if isinstance(given, dict):
            return {name: self._noted(each) for name, each in given.items()}
        if isinstance(given, slice):
            return [self._noted(each) for each in (given.start, given.stop, given.step)]
        is_length = type(given) is int and (abs(given) > LARGEST_DIM or abs(given) in self.lengths)
        return "length" if is_length else given
