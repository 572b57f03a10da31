"""Which modules of a model `patch` may replace."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from torch.nn import Module

Predicate = Callable[[str, Module], bool]
Only = str | type | Predicate | Iterable[str | type | Predicate] | None


def selector(only: Only, model: Module) -> Predicate:
    """Whether a module (its name, itself) is chosen.

    `only`: a glob pattern of names, a type, a function of a name and a module, or several of these, of which
    one has to hold; None chooses all. Raises TypeError for anything else, and ValueError for a pattern that
    no module of the model has.
    """
    if only is None:
        return lambda name, module: True
    single = isinstance(only, (str, type)) or not isinstance(only, Iterable)
    given: Any = (only,) if single else only
    tests = [_test(each, model) for each in given]
    return lambda name, module: any(test(name, module) for test in tests)


def _test(given: Any, model: Module) -> Predicate:
    if isinstance(given, str):
        names = [name for name, _ in model.named_modules(remove_duplicate=False)]
        if not any(fnmatchcase(name, given) for name in names):
            close = difflib.get_close_matches(given, names, 1)
            help = f"; did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"only={given!r} matches no module of {type(model).__name__}{help}")
        return lambda name, module: fnmatchcase(name, given)
    if isinstance(given, type):
        return lambda name, module: isinstance(module, given)
    if callable(given):
        predicate: Predicate = given
        return predicate
    raise TypeError(
        f"only takes glob patterns of names, types and functions of a name and a module, "
        f"not {type(given).__name__}"
    )
