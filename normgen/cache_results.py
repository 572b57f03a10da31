"""Results of the compiler's steps, kept in the cache: templates as code, packages, texts of kernels, modules.

All of them are quickly computed again, so a cache that cannot be used is not reported.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from normgen.cache import digest, usual_cache
from normgen.locks import cached_property

if TYPE_CHECKING:
    from importlib.abc import Traversable

    from normgen.diagnostics import Source

T = TypeVar("T")

# Types of attr values that their text says all of.
_PLAIN = (bool, int, float, str)


def kept(kind: str, parts: tuple[str, ...], build: Callable[[], bytes]) -> bytes:
    """The result of `build()`, computed once for all processes of this user that share a cache.

    `kind`: the kind of result, which is the suffix of its file. `parts`: everything that it depends on,
    except the version of Python.
    """
    found = usual_cache()
    if found is None:
        return build()
    return found.get_or_build_bytes(digest(kind, sys.version, *parts), build, f".{kind}")


def result_of(
    kind: str, source: Source, attrs: Mapping[str, object], parts: tuple[str, ...], make: Callable[[], Any]
) -> Any:
    """A result of the compiler for a spec, whose late parts are made when they are asked for (see `Late`).

    `kind`: a word for it; `parts`: what it depends on besides.
    """
    if any(type(value) not in _PLAIN for value in attrs.values()):
        return make()
    given = (source.name, source.text, repr(sorted(attrs.items())), *parts)
    parted = cache(lambda: _parted(make()))

    def late(key: str) -> Late[Any]:
        def build() -> bytes:
            return pickle.dumps(parted()[1][key].value)

        return Late(key, lambda: pickle.loads(kept(kind, (sources(), *given, key), build)))

    # As safe as kernels are, which lie in the same folder: nobody else may write there.
    return _Unpickler(kept(kind, (sources(), *given), lambda: parted()[0]), late).load()


class Late(Generic[T]):
    """A part of a result that is made when it is first asked for.

    A cached result names its late parts by their keys. The first reader of a part takes it from the cache
    too, or makes it. No two parts of a result have the same key.
    """

    def __init__(self, key: str, make: Callable[[], T]) -> None:
        self.key, self._make = key, make

    @cached_property
    def value(self) -> T:
        """The part."""
        return self._make()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Late) and self.value == other.value)

    def __hash__(self) -> int:
        return hash(Late)  # equal parts may have different keys, and a hash is no reason to make one

    def __repr__(self) -> str:
        return repr(self.value)

    def __reduce__(self) -> Any:
        return ready, (self.key, self.value)

    def __deepcopy__(self, memo: Any) -> Late[T]:
        return self  # it never changes


def ready(key: str, value: T) -> Late[T]:
    """A part that exists already."""
    return Late(key, lambda: value)


def _parted(result: Any) -> tuple[bytes, Mapping[str, Late[Any]]]:
    """A result without its late parts, and these by their keys."""
    out = io.BytesIO()
    pickler = _Pickler(out)
    pickler.dump(result)
    return out.getvalue(), pickler.late


class _Pickler(pickle.Pickler):
    """Pickles a result without its late parts, and collects these."""

    def __init__(self, out: io.BytesIO) -> None:
        super().__init__(out)
        self.late: dict[str, Late[Any]] = {}

    def persistent_id(self, part: Any) -> str | None:
        if not isinstance(part, Late):
            return None
        assert self.late.setdefault(part.key, part) is part, f"two parts have the key {part.key}"
        return part.key


class _Unpickler(pickle.Unpickler):
    """Gives a result its late parts back."""

    def __init__(self, content: bytes, late: Callable[[str], Late[Any]]) -> None:
        super().__init__(io.BytesIO(content))
        self.persistent_load = cache(late)  # type: ignore[method-assign]


@cache
def sources() -> str:
    """A digest of all that normgen is made of: its code, its templates, its grammar."""
    total = hashlib.sha256()
    for name, file in _files(resources.files("normgen"), ""):
        content = file.read_bytes()
        total.update(f"{name} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()


def _files(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{prefix}/{entry.name}"
        if entry.is_file():
            yield name, entry
        elif entry.name != "__pycache__":
            yield from _files(entry, name)
