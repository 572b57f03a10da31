"""Modules that change their class in place: everything that an instance has stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any, ClassVar, NamedTuple

from torch.nn import Module


class Patched:
    """The first base of each class that `patch` makes.

    Such a class derives from a drop-in and from the class that it stands for, whose instances become its own
    by a change of class. Pickles hold how the class is made, for it has no name in any module.
    """

    replaced: ClassVar[type[Module]]
    recipe: ClassVar[tuple[Any, ...]]  # a function and its arguments, which make the class
    is_drop_in: ClassVar[bool] = False  # whether all its methods are those of a drop-in

    def __prepare_scriptable__(self) -> Any:
        """RuntimeError: `torch.jit.script` asks for what it may compile the source of."""
        raise RuntimeError(
            f"TorchScript does not support {type(self).__name__}, which normgen has patched: call nt.unpatch "
            "first, or use torch.jit.trace or torch.export"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        made = super().__reduce_ex__(protocol)
        return (blank, self.recipe, *made[2:]) if _is_patched(type(self)) else made


class Match(NamedTuple):
    """A norm of a block that can become one call with its neighbors. `shown`: their specs, in a report.
    `key`: the names of what is joined, by which the class for the block is made."""

    norm: str
    shown: str
    key: Any


def make_class(
    original: type[Module],
    bases: tuple[type, ...],
    recipe: tuple[Any, ...],
    members: dict[str, Any] | None = None,
) -> type[Module]:
    """A class that stands for `original`, which is among its bases, and has its name, which models and reprs
    look at."""
    kind: Any = type(original)
    made: type[Module] = _metaclass(kind)(
        original.__name__,
        (Patched, *bases),
        {
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "__doc__": original.__doc__,
            "replaced": original,
            "recipe": recipe,
            **(members or {}),
        },
    )
    return made


@cache
def _metaclass(kind: Any) -> Any:
    """A metaclass whose classes say in messages of tools, which compare classes, that they are patched."""

    def shown(cls: Any) -> str:
        where = f"{cls.__module__}.{cls.__qualname__}"
        patched = f"<class '{where}' patched by normgen: nt.unpatch puts it back>"
        return patched if _is_patched(cls) else str(kind.__repr__(cls))

    return type(kind)(f"Patched{kind.__name__}", (kind,), {"__repr__": shown})


def become(module: Module, cls: type[Module]) -> None:
    """Change the class of a module, whatever it does where its attributes are set."""
    object.__setattr__(module, "__class__", cls)


def blank(make: Callable[..., type], *arguments: Any) -> Any:
    """An instance without its state: what pickles and copies begin with."""
    cls: Any = make(*arguments)
    return cls.__new__(cls)


def restore(modules: list[tuple[str, Module]]) -> tuple[str, ...]:
    """Give patched modules the classes that they had; returns their names. RuntimeError where the class was
    changed again since, and then no module is touched."""
    found = []
    for name, module in modules:
        if _is_patched(type(module)):
            found.append((name, module))
        elif isinstance(module, Patched):
            raise RuntimeError(
                f"{name or 'the model'} became a {type(module).__name__} after it was patched: "
                f"call unpatch before you wrap or parametrize modules"
            )
    for _, module in found:
        cls: type[Any] = type(module)
        _rebind(module, cls)
        become(module, cls.replaced)
    return tuple(name for name, _ in found)


def _rebind(module: Module, cls: type[Any]) -> None:
    """Replace methods of a patched class that are set on a module itself, as in `m.forward = m.forward`."""
    for name, each in vars(module).items():
        if isinstance(each, MethodType) and each.__self__ is module:
            method = each.__name__
            if getattr(cls, method, None) is each.__func__ and hasattr(cls.replaced, method):
                vars(module)[name] = MethodType(getattr(cls.replaced, method), module)


def _is_patched(cls: type) -> bool:
    """Whether `patch` made this very class; others may derive from it."""
    return "recipe" in vars(cls)
