"""Results of the compiler's steps, kept in the cache: templates as code, packages, texts of kernels, modules.

All of them are quickly computed again, so a cache that cannot be used is not reported.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
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
    is_plain = all(type(value) in _PLAIN for value in attrs.values())
    given = (source.name, source.text, repr(sorted(attrs.items())), *parts) if is_plain else None
    whole = _Whole(kind, given, make)
    # As safe as kernels are, which lie in the same folder: nobody else may write there.
    return _Unpickler(whole.kept("", lambda: whole.parted[0]), whole).load()


@dataclass(frozen=True)
class Late(Generic[T]):
    """A part of a result that is made when it is called, from the arguments of the call.

    A cached result names its late parts by their keys. The first caller takes a part from the cache too, or
    makes it. No two parts of a result have the same key. Parts are equal if they are made in the same way.
    """

    key: str
    make: Callable[..., T] = field(repr=False)

    def __call__(self, *given: Any) -> T:
        """The part."""
        return self._made(*given)

    @cached_property
    def _made(self) -> Callable[..., T]:
        return lru_cache(maxsize=64)(self.make)

    def __reduce__(self) -> Any:
        return Late, (self.key, self.make)

    def __deepcopy__(self, memo: Any) -> Late[T]:
        return self  # it never changes


@dataclass(frozen=True, eq=False)
class _Whole:
    """A result of the compiler. `given`: what it is made of; None if that is no text, by which others could
    find it in the cache. A pickle holds how the result is made, and not the result."""

    kind: str
    given: tuple[str, ...] | None
    make: Callable[[], Any]

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, _Whole) or self.given is None:
            return self is other
        return (self.kind, self.given) == (other.kind, other.given)

    def __hash__(self) -> int:
        return hash((self.kind, self.given))

    def __reduce__(self) -> Any:
        return _Whole, (self.kind, self.given, self.make)

    @cached_property
    def parted(self) -> tuple[bytes, Mapping[str, Late[Any]]]:
        """The result without its late parts, and these by their keys."""
        return _parted(self.make())

    def kept(self, part: str, build: Callable[[], bytes]) -> bytes:
        """What `build` makes of a part, or of the result itself."""
        return build() if self.given is None else kept(self.kind, (sources(), *self.given, part), build)


@dataclass(frozen=True)
class _Part:
    """How a late part of a cached result is made."""

    whole: _Whole
    key: str

    def __call__(self, *given: Any) -> Any:
        def build() -> bytes:
            return pickle.dumps(self.whole.parted[1][self.key](*given))

        return pickle.loads(self.whole.kept(f"{self.key} {given!r}", build))


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

    def __init__(self, content: bytes, whole: _Whole) -> None:
        super().__init__(io.BytesIO(content))
        self.persistent_load = cache(lambda key: Late(key, _Part(whole, key)))  # type: ignore[method-assign]


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
