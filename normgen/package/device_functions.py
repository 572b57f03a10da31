"""The device functions that kernel texts call: declarations in the `.cuh` files of `templates/device`.

A text names what it calls, and `inlined` puts before it the declarations of these names, and of all that they
name in turn. Whoever compiles a text does that first: so nvcc, NVRTC and the host's compiler need no folder
to look in, and the key of a binary, which is of the whole text, covers what is called.

The files are C++ headers. What they include orders them. Between declarations they have only comments: one
that is apart from what follows begins a section.
"""

from __future__ import annotations

import pickle
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from normgen.cache_results import kept

HEAD = "// Device functions come first.\n"
_INCLUDE = re.compile(r'^#include "normgen/([^"]+)"\n', re.MULTILINE)
_NO_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//.*|^ *#.*(?:\\\n.*)*', re.MULTILINE)
# No member of something: `moments.mean`, `Layout::has`.
_WORD = re.compile(r"(?<![\w.])(?<!->)(?<!\w::)(?<!>::)[A-Za-z_]\w*")
_TEMPLATE = re.compile(r"template <(?:[^<>()]|<[^<>]*>|\([^()]*\))*>\s*")
_TYPE = re.compile(r"(?:struct(?: alignas\([^{]*\))?|enum|using) (\w+)")
_CONSTANT = re.compile(r"(?<=[\w,] )(\w+) = ")
_FUNCTION = re.compile(r"(\w+)(?:<\w+>)?\(")
# What CUDA's own headers have. A declaration for one of the types is needed where that type is.
_ELEMENTS = frozenset(("__half", "__nv_bfloat16", "__nv_fp8_e4m3", "__nv_fp8_e5m2"))
_ELEMENT = re.compile("|".join(_ELEMENTS))
_REFERENCE = re.compile(r"\b([A-Z]\w*)(?:<[^()]*?>)?& ")
_OF_CUDA = (
    ("cuda_bf16.h", re.compile(r"__nv_bfloat16\w*|__\w*bfloat16\w*")),
    ("cuda_fp16.h", re.compile(r"__half2?|__\w*half\w*")),
    ("cuda_fp8.h", re.compile(r"__nv_fp8\w*")),
)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A declaration of a file, or several between `#if` and `#endif`.

    `section`: the comment that its section begins with; `text`: with the comment above it; `names`: what it
    declares; `words`: what it names; `needs`: types without which nobody calls it, those of CUDA's headers
    and those that it takes by reference.
    """

    section: str
    text: str
    names: frozenset[str]
    words: frozenset[str]
    needs: frozenset[str]


def inlined(text: str) -> str:
    """The text behind the declarations of all that it calls. One that has them already stays as it is."""
    functions = "" if HEAD in text else functions_of([text])
    return f"{functions}\n{text}" if functions else text


def functions_of(texts: Iterable[str]) -> str:
    """The declarations of all that some texts call, each once, in the order of the files."""
    named = set(_words("".join(texts)))
    reached, before = dict[int, Declaration](), -1
    while before < len(reached):
        before = len(reached)
        for place, each in enumerate(declarations()):
            if place not in reached and each.names & named and each.needs <= named:
                reached[place] = each
                named |= each.words
    included = "".join(f"#include <{file}>\n" for file, word in _OF_CUDA if any(map(word.fullmatch, named)))
    parts = [f"{HEAD}{included}"] * bool(included or reached)
    for _, each in sorted(reached.items()):
        parts += [each.section] * (each.section not in parts) + [each.text]
    return "\n".join(filter(None, parts))


def _words(text: str) -> frozenset[str]:
    """The names in a text."""
    return frozenset(_WORD.findall(_NO_CODE.sub("", text)))


@cache
def declarations() -> tuple[Declaration, ...]:
    """Those of all files, each after those that it names."""
    texts = {name: file_text(name) for name in files()}

    def parsed() -> bytes:
        found = [each for name in _in_order(texts) for each in _parts(texts[name])]
        types = {*_ELEMENTS, *(name for each in found for name in each.names)}
        return pickle.dumps([replace(each, needs=each.needs & types) for each in found])

    return tuple(
        pickle.loads(kept("functions", (_data("package/device_functions.py"), *texts.values()), parsed))
    )


@cache
def files() -> tuple[str, ...]:
    """All files of device functions."""
    folder = resources.files("normgen") / "templates" / "device"
    rooms = {"": folder} | {f"{each.name}/": each for each in folder.iterdir() if each.is_dir()}
    found = [f"{prefix}{each.name}" for prefix, room in rooms.items() for each in room.iterdir()]
    return tuple(sorted(name for name in found if name.endswith(".cuh")))


@cache
def file_text(name: str) -> str:
    """What a file of device functions holds."""
    return _data(f"templates/device/{name}")


def _data(name: str) -> str:
    # (`importlib.resources` takes longer to begin with than all files take to read)
    found = pkgutil.get_data("normgen", name)
    assert found is not None, "packages are files, in a folder or an archive"
    return found.decode()


def _in_order(texts: Mapping[str, str]) -> Iterable[str]:
    """Files, each after those that it includes."""
    found: dict[str, None] = {}

    def add(name: str) -> None:
        if name not in found:
            for other in _INCLUDE.findall(texts[name]):
                add(other)
            found[name] = None

    for name in texts:
        add(name)
    return found


def _parts(text: str) -> Iterator[Declaration]:
    """The declarations of a file: each ends where all braces are closed, and `#if` with them. `heads`: what
    stands before the braces of each that is in `body`."""
    section, lead, body, heads = "", list[str](), list[str](), list[str]()
    begin = depth = conditions = 0
    for line in _INCLUDE.sub("", text).replace("#pragma once\n", "").splitlines(keepends=True):
        if not body and line.startswith("//"):
            lead.append(line)
            continue
        if not body and not line.strip():
            section, lead = "".join(lead) or section, []
            continue
        code = "" if line.startswith("#") else _NO_CODE.sub("", line).strip()
        body.append(line)
        conditions += line.startswith("#if") - line.startswith("#endif")
        depth += sum(map(code.count, "({")) - sum(map(code.count, ")}"))
        if depth == 0 and code.endswith((";", "}")):
            heads.append(_NO_CODE.sub("", "".join(body[begin:])).partition("{")[0])
            begin = len(body)
        elif depth == 0 and line.startswith("#"):
            begin = len(body)
        if depth == conditions == 0 and begin == len(body):
            yield _declaration(section, lead, body, heads)
            lead, body, heads, begin = [], [], [], 0
    assert not body, body[0]


def _declaration(section: str, lead: Sequence[str], body: Sequence[str], heads: Sequence[str]) -> Declaration:
    """What these lines declare. `lead`: the comment above them."""
    names = frozenset(name for head in heads for name in _names(head))
    head, text = "".join(heads), "".join(body)
    needs = frozenset((*_ELEMENT.findall(head), *_REFERENCE.findall(head))) - names
    assert names and len(needs & _ELEMENTS) < 2, text
    return Declaration(section, "".join((*lead, text)), names, _words(text), needs)


def _names(head: str) -> Iterable[str]:
    """What a declaration declares, by what stands before its braces."""
    plain = _TEMPLATE.sub("", head, count=1).strip()
    if found := _TYPE.match(plain):
        return (found[1],)
    if plain.startswith(("constexpr", "[[maybe_unused]] constexpr")):
        return _CONSTANT.findall(plain)
    found = _FUNCTION.search(plain)
    assert found is not None, head
    return (found[1],)
