"""The page of a call: its kernels as they are compiled, behind the device functions that they call."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from normgen.kernel.folding import WIDTH
from normgen.launching.launch import Launch, Slot, parameters_of
from normgen.package.device_functions import functions_of

# NVRTC has no headers of the C library, from which nvcc has this.
INFINITY = """\
#ifndef INFINITY
#define INFINITY __builtin_bit_cast(float, 0x7f800000)
#endif
"""
_KERNEL = re.compile(r"^// ---- (\w+) -+\n// grid ", re.MULTILINE)


def page(launches: Sequence[Launch], head: Sequence[str] = ()) -> str:
    """The text of what a call launches, as one text that compiles by itself. `head`: lines about the
    whole."""
    by_source: dict[str, list[Launch]] = {}
    for launch in told_apart(launches):
        by_source.setdefault(launch.source, []).append(launch)
    kernels = [_kernel(source, same) for source, same in by_source.items()]
    if len(kernels) > 1:
        kernels = [
            f"namespace kernel_{k} {{\n\n{each}\n}}  // namespace kernel_{k}\n"
            for k, each in enumerate(kernels, 1)
        ]
    text = "\n".join([functions_of(by_source), *kernels])
    text = INFINITY * ("INFINITY" in text) + text
    heading = "".join(f"// {line}".rstrip() + "\n" for line in head)
    return heading + _contents(text, heading.count("\n")) + text


def told_apart(launches: Sequence[Launch]) -> Iterator[Launch]:
    """The launches of a call for texts that stand together: those of one kernel, which have one name, with a
    number behind it."""
    texts: dict[str, dict[str, int]] = {}
    for launch in launches:
        of_kernel = texts.setdefault(launch.entry, {})
        of_kernel.setdefault(launch.source, len(of_kernel) + 1)
    for launch in launches:
        if len(texts[launch.entry]) > 1:
            name = f"{launch.entry}_{texts[launch.entry][launch.source]}"
            text, count = re.subn(rf"\b{launch.entry}(?=\()", name, launch.source)
            assert count == 1, launch.entry
            launch = replace(launch, entry=name, text=text)
        yield launch


def _contents(text: str, above: int) -> str:
    """Where the kernels of a text are, which follows so many lines and these."""
    kernels = [(found[1], text.count("\n", 0, found.start())) for found in _KERNEL.finditer(text)]
    size = len(kernels) + 3
    lines = [f"//   {name}: line {line + above + size + 1}" for name, line in kernels]
    return "\n".join(["", "// The kernels:", *lines, "", ""])


def _kernel(text: str, launches: Sequence[Launch]) -> str:
    """A kernel behind what it is launched with: the grid, and its arguments by name."""
    lines = [f"// ---- {launches[0].entry} ".ljust(WIDTH - 10, "-")]
    for launch in launches:
        grid, block = (", ".join(map(str, each)) for each in (launch.grid, launch.block))
        cluster = f", clusters of {launch.cluster} blocks" if launch.cluster > 1 else ""
        lines.append(
            f"// grid ({grid}), block ({block}), {launch.shared} bytes of dynamic shared memory{cluster}"
        )
        names = parameters_of(text, launch.entry, len(launch.values))
        pairs = zip(names, launch.values, strict=True)
        numbers = [f"{name}\0=\0{value}" for name, value in pairs if not isinstance(value, Slot)]
        said = textwrap.wrap("with " + ", ".join(numbers), WIDTH - 3) if numbers else ()
        lines += [f"// {line}".replace("\0", " ") for line in said]  # (a name and its number on one line)
    return "\n".join([*lines, "", text])
