"""The page of a call: its kernels one after the other, behind the device functions that they use."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from normgen.kernel.folding import WIDTH
from normgen.kernel.folding import folded as broken
from normgen.launching.launch import Launch, Slot
from normgen.package.device_functions import functions_of, without_includes
from normgen.page.constants import aligned, meaning
from normgen.page.declarations import declarations
from normgen.page.layout import joined
from normgen.page.locals import hidden
from normgen.page.preprocess import preprocess
from normgen.page.program import reduced
from normgen.page.syntax import names, parse, text_of

_HEADERS = (
    ("cuda_bf16.h", re.compile(r"__nv_bfloat16\w*|\w*bfloat16\w*")),
    ("cuda_fp16.h", re.compile(r"__half2?|__\w*half\w*|__(low|high)2float")),
    ("cuda_fp8.h", re.compile(r"__nv_fp8\w*")),
)
# NVRTC has no headers of the C library, from which nvcc has this.
INFINITY = """\
#ifndef INFINITY
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#endif
"""
# No line ends in blanks, directives begin theirs, and blank lines are alone, before titles, between others.
_LAYOUT = (
    (r" +\n", "\n"),
    (r"\n +#", "\n#"),
    (r"\n+(// ----.*)\n+", r"\n\n\1\n"),
    (r"\n{3,}", "\n\n"),
    (r"\n\n( *\})(?!  //)", r"\n\1"),
)
_KERNEL = re.compile(r"^// ---- (\w+) -+\n// grid ", re.MULTILINE)
UNIT = re.compile(r"^namespace kernel_\d+ \{\n(.*?)^}  // namespace[^\n]*$", re.MULTILINE | re.DOTALL)


def device_macros(arch: str) -> dict[str, int]:
    """What the compiler of a device defines that texts ask for."""
    return {"__CUDA_ARCH__": 10 * int("".join(filter(str.isdigit, arch)))}


HOST_MACROS = {"NORMGEN_HOST": 1}


def page(launches: Sequence[Launch], macros: Mapping[str, int], head: Sequence[str] = ()) -> str:
    """The text of what a call launches, as one text that compiles by itself. `head`: lines about the
    whole."""
    by_source: dict[str, list[Launch]] = {}
    for launch in told_apart(launches):
        by_source.setdefault(launch.source, []).append(launch)
    text = joined(reduced(whole(list(by_source), macros)))
    root = parse(text)
    units = UNIT.findall(text)
    kernels = [
        _kernel(unit, same, k if len(units) > 1 else None)
        for k, (unit, same) in enumerate(zip(units, by_source.values(), strict=True), 1)
    ]
    heading = laid_out(["".join(f"// {line}".rstrip() + "\n" for line in head)])
    text = laid_out([_includes(set(names(root))), _titled(UNIT.sub("", text)), *kernels])
    return heading + _contents(text, heading.count("\n")) + text


def told_apart(launches: Sequence[Launch]) -> tuple[Launch, ...]:
    """The launches of a call for texts that stand together: those of one kernel, which have one name, with a
    number behind it."""
    texts: dict[str, dict[str, int]] = {}
    for launch in launches:
        of_kernel = texts.setdefault(launch.entry, {})
        of_kernel.setdefault(launch.source, len(of_kernel) + 1)

    def numbered(launch: Launch) -> Launch:
        name = f"{launch.entry}_{texts[launch.entry][launch.source]}"
        text, count = re.subn(rf"\b{launch.entry}(?=\()", name, launch.source)
        assert count == 1, launch.entry
        return replace(launch, entry=name, text=text)

    return tuple(numbered(each) if len(texts[each.entry]) > 1 else each for each in launches)


def whole(sources: Sequence[str], macros: Mapping[str, int]) -> str:
    """The device functions that some texts of kernels include, and each text in a namespace of its own."""
    texts = (_namespace(k, without_includes(source)) for k, source in enumerate(sources, 1))
    text = preprocess("\n".join((functions_of(sources), *texts)), macros)
    return text.replace("[[maybe_unused]] ", "")


def _namespace(place: int, text: str) -> str:
    return f"namespace kernel_{place} {{\n{text}\n}}  // namespace kernel_{place}\n"


def _titled(text: str) -> str:
    """Device functions without titles of sections that are empty."""
    return re.sub(r"^// ---- .*\n\s*(?=// ---- |\Z)", "", text, flags=re.MULTILINE)


def laid_out(parts: Sequence[str]) -> str:
    """Parts of a page below one another, in lines that are not too long."""
    text = "\n".join(part.strip("\n") + "\n" for part in parts if part.strip())
    for pattern, wanted in _LAYOUT:
        text = re.sub(pattern, wanted, text)
    lines = text.split("\n")
    return "\n".join(line if len(line) <= WIDTH else broken(line) for line in lines)


def _contents(text: str, above: int) -> str:
    """Where the kernels of a text are, which follows so many lines and these."""
    kernels = [(found[1], text.count("\n", 0, found.start())) for found in _KERNEL.finditer(text)]
    size = len(kernels) + 3
    lines = [f"//   {name}: line {line + above + size + 1}" for name, line in kernels]
    return "\n".join(["", "// Device functions come first, then the kernels:", *lines, "", ""])


def _includes(names: set[str]) -> str:
    used = [name for name, pattern in _HEADERS if any(pattern.fullmatch(each) for each in names)]
    text = "".join(f"#include <{name}>\n" for name in used)
    return text + (INFINITY if "INFINITY" in names else "")


def _kernel(text: str, launches: Sequence[Launch], place: int | None) -> str:
    """A kernel behind its constants, and what it is launched with. `place`: of its namespace, where there are
    several."""
    *own, kernel = declarations(parse(text))
    names = {one.name for one in own}
    constants = aligned([(" ".join(text_of(one.node).split()), meaning(one.name, names)) for one in own])
    code = text[own[-1].node.end_byte if own else 0 :].partition("\n")[2]
    taken = [name for part in kernel.head for name in hidden(part)]
    lines = [f"// ---- {launches[0].entry} ".ljust(WIDTH - 10, "-")]
    for launch in launches:
        lines += [f"// {line}" for line in _launched(launch, taken)]
    inner = "\n".join([*lines, "", *constants, "", code.strip()])
    return inner if place is None else _namespace(place, f"\n{inner}\n")


def _launched(launch: Launch, names: Sequence[str]) -> Iterator[str]:
    """What a kernel is launched with: the grid, and its arguments by name."""
    grid, block = (", ".join(map(str, each)) for each in (launch.grid, launch.block))
    cluster = f", clusters of {launch.cluster} blocks" if launch.cluster > 1 else ""
    yield f"grid ({grid}), block ({block}), {launch.shared} bytes of dynamic shared memory{cluster}"
    numbers = [
        f"{name}\0=\0{value}"  # on one line
        for name, value in zip(names, launch.values, strict=True)
        if not isinstance(value, Slot)
    ]
    for line in textwrap.wrap("with " + ", ".join(numbers), WIDTH - 3) if numbers else ():
        yield line.replace("\0", " ")
