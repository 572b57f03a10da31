"""Which modules of a model `patch` may replace."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from torch.jit import ScriptModule
from torch.nn import Module, Sequential
from torch.nn.parameter import is_lazy

Predicate = Callable[[str, Module], bool]
Only = str | type | Predicate | Iterable[str | type | Predicate] | None


def may_be_norm(module: Module) -> bool:
    """Whether a module might be a norm, so that `patch` reports why it leaves it: it is called one, or has a
    gain and perhaps a bias that are no layer's of PyTorch.

    What is called a norm and holds one, such as a block that normalizes first, is not taken for another.
    """
    cls: Any = type(module)
    has_shape = is_foreign(cls) and _has_norm_shape(module)
    computes = is_called_norm(cls) and cls.forward is not Sequential.forward
    return has_shape or (computes and not holds_norm(module))


def holds_norm(module: Module) -> bool:
    return any(each is not module and may_be_norm(each) for each in module.modules())


def is_called_norm(cls: type[Module]) -> bool:
    return "norm" in cls.__name__.lower()


@cache
def is_foreign(cls: type[Module]) -> bool:
    """Whether a class, or one that it derives from, is not one of PyTorch's layers."""
    above = cls.__mro__[: cls.__mro__.index(Module)]
    return issubclass(cls, ScriptModule) or any(
        not f"{each.__module__}.".startswith("torch.") for each in above
    )


def _has_norm_shape(module: Module) -> bool:
    """At most two parameters of one dimension and one length, and perhaps others that are None; or such whose
    length is not known yet. Or buffers like those of a frozen batch norm."""
    own = [*module._parameters.values()]
    if not own and any("var" in name for name in module._buffers):
        own = [*module._buffers.values()][:2]
    known = [each for each in own if each is not None]
    if not own or len(known) > 2 or any(map(is_lazy, known)):
        return 0 < len(known) <= 2
    shapes = {tuple(each.shape) for each in known}
    return len(shapes) <= 1 and all(len(each) == 1 and each != (1,) for each in shapes)


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
        f"only= takes glob patterns of names, types, or functions of a name and a module, "
        f"not {type(given).__name__}"
    )
