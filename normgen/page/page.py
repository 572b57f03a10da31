"""The page of a call: its kernels one after the other, behind the device functions that they use."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from normgen.kernel.folding import WIDTH
from normgen.kernel.folding import folded as broken
from normgen.launching.launch import Launch, Slot
from normgen.package.device_functions import functions_of, without_includes
from normgen.page.constants import aligned, meaning
from normgen.page.flags import single_flags, without_flags
from normgen.page.fold import parameters
from normgen.page.preprocess import preprocess
from normgen.page.program import Node, Program
from normgen.page.tokens import Group, leading, led, names_of, nest, templates_of, text_of, tokenise
from normgen.page.tree import Declaration, declarations, parameters_of

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
_KERNEL = re.compile(r"^// ---- (\w+) -+\n// grid ", re.MULTILINE)
_TITLE = re.compile(r"^// ---- .*$", re.MULTILINE)


def device_macros(arch: str) -> dict[str, int]:
    """What the compiler of a device defines that texts ask for."""
    return {"__CUDA_ARCH__": 10 * int("".join(filter(str.isdigit, arch)))}


HOST_MACROS = {"NORMGEN_HOST": 1}


def page(launches: Sequence[Launch], macros: Mapping[str, int], head: Sequence[str] = ()) -> str:
    """The text of what a call launches, as one text that compiles by itself. `head`: lines about the
    whole."""
    by_source: dict[str, list[Launch]] = {}
    for launch in launches:
        by_source.setdefault(launch.source, []).append(launch)
    pieces = (functions_of(by_source), *map(without_includes, by_source))
    # (what nothing uses here is not printed)
    texts = [preprocess(text, macros).replace("[[maybe_unused]] ", "") for text in pieces]
    every = [tokenise(text) for text in texts]
    templates = set().union(*map(templates_of, every))
    before, *units = (nest(each, templates) for each in every)
    program = without_decided(Program(before, units))
    folded = program.folded()
    functions = _sections(program.before, folded)
    kernels = [
        _kernel(k, nodes, folded, same, len(units) > 1)
        for k, (nodes, same) in enumerate(zip(program.units, by_source.values(), strict=True))
    ]
    names = {name for node in folded if not node.members for name in names_of(folded[node].items)}
    heading = _laid_out(["".join(f"// {line}".rstrip() + "\n" for line in head)])
    text = _laid_out([_includes(names), functions, *kernels])
    return heading + _contents(text, heading.count("\n")) + text


def without_decided(program: Program) -> Program:
    """What a program prints, without the flags of templates that have one value."""
    reached = program.folded()
    flags = single_flags(program, reached)
    every = [(_sections(program.before, reached), program.before)]
    for unit in program.units:
        every.append(("".join(text_of(reached[node].items) for node in unit if node in reached), unit))
    found = [tokenise(text) for text, _ in every]
    templates = set().union(*map(templates_of, found))
    before, *units = (
        without_flags(declarations(nest(text, templates)), nodes, reached, flags)
        for text, (_, nodes) in zip(found, every, strict=True)
    )
    return Program(before, units)


def _laid_out(parts: Sequence[str]) -> str:
    """Parts of a page below one another, in lines that are not too long."""
    text = "\n".join(part.strip("\n") + "\n" for part in parts if part.strip())
    lines = re.sub(r"\n{3,}", "\n\n", re.sub(r" +\n", "\n", text)).split("\n")
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


# ------------------------------------------------------------------------------------------- device functions


def _sections(nodes: Sequence[Node], folded: Mapping[Node, Declaration]) -> str:
    """Declarations one after the other; a section keeps its title, whichever of it is there."""
    out = []
    title = ""
    dropped = False
    for node in nodes:
        lead = leading(node.declaration.items)
        titled = _TITLE.search(lead)
        if titled:
            title = titled[0]
        if node not in folded:
            dropped = True
            continue
        text = _text(node, folded, _own(lead) if dropped else lead)
        if title and not titled:
            text = f"\n\n{title}\n\n{text.lstrip(chr(10))}"
        out.append(text)
        title, dropped = "", False
    return "".join(out)


def _text(node: Node, folded: Mapping[Node, Declaration], lead: str) -> str:
    """A declaration, of a class with the members that are reached."""
    each = folded[node]
    if each.kind != "class" or each.body is None:
        return text_of(led(each.items, lead))
    inner = ""
    dropped = False
    for member in node.members:
        if member in folded:
            own = leading(member.declaration.items)
            inner += _text(member, folded, _own(own) if dropped else own)
        dropped = member not in folded
    close = each.body.close.lead
    close = _own(close) if dropped else close
    members = f"{each.body.open.lead}{{{inner}{close if inner else ''}}}"
    return text_of(led(each.head, lead)) + members + text_of(each.tail)


def _own(lead: str) -> str:
    """What stands before a declaration without what belongs to the line of the one before."""
    at = lead.find("\n")
    return lead if at < 0 else lead[at:]


# ---------------------------------------------------------------------------------------------------- kernels


def _kernel(
    place: int,
    nodes: Sequence[Node],
    folded: Mapping[Node, Declaration],
    launches: Sequence[Launch],
    several: bool,
) -> str:
    """A kernel behind its constants, and what it is launched with."""
    kernel = next(node for node in nodes if node.declaration.kind == "function")
    each = folded[kernel]
    own = [folded[node] for node in nodes if node in folded and node is not kernel]
    names = {one.name for one in own}
    constants = aligned(
        [(" ".join(text_of(led(one.items, "")).split()), meaning(one.name, names)) for one in own]
    )
    entry = launches[0].entry
    lines = [f"// ---- {entry} ".ljust(WIDTH - 10, "-")]
    for launch in launches:
        lines += [f"// {line}" for line in _launched(launch, each)]
    inner = "\n".join(
        [
            *lines,
            "",
            *constants,
            "",
            text_of(led(each.items, _own(leading(each.items)).strip() + "\n")).strip(),
        ]
    )
    if not several:
        return inner
    return f"namespace kernel_{place + 1} {{\n\n{inner}\n\n}}  // namespace kernel_{place + 1}"


def _launched(launch: Launch, kernel: Declaration) -> Iterator[str]:
    """What a kernel is launched with: the grid, and its arguments by name."""
    grid, block = (", ".join(map(str, each)) for each in (launch.grid, launch.block))
    cluster = f", clusters of {launch.cluster} blocks" if launch.cluster > 1 else ""
    yield f"grid ({grid}), block ({block}), {launch.shared} bytes of dynamic shared memory{cluster}"
    at = parameters_of(kernel.head)
    assert at is not None
    taken = kernel.head[at]
    assert isinstance(taken, Group)
    names = list(parameters(taken))
    numbers = [
        f"{name}\0=\0{value}"  # on one line
        for name, value in zip(names, launch.values, strict=True)
        if not isinstance(value, Slot)
    ]
    for line in textwrap.wrap("with " + ", ".join(numbers), WIDTH - 3) if numbers else ():
        yield line.replace("\0", " ")
