"""The bundled specs, a page each: formulas, who uses them, signature, saves, bytes, bandwidth, a kernel.

Sources: the specs, the compiler, the tables of docs/specs.md, and the measurements in bench/results.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from html import unescape
from typing import Any

from normgen import bundled
from normgen.api import read_definition
from normgen.cache_results import kept, sources
from normgen.cli.html.explained import Explained, code_of, explained
from normgen.cli.listing import describe
from normgen.cli.sizes import Setting, usual_sizes
from normgen.codegen.compilation import Compilation
from normgen.counting import bytes_text
from normgen.ir.mathml import formulas_html
from normgen.launching.machine import usual_machine
from normgen.package.signature import sections
from normgen.runtime.norm import Norm
from tools.docs.bandwidth import RESULTS, bandwidth
from tools.docs.pages import ROOT, Page
from tools.docs.thumbnail import thumbnail

# What people look for, and the specs that they find there.
GROUPS: Mapping[str, Sequence[str]] = {
    "Language models": (
        "rmsnorm",
        "rmsnorm_llama",
        "rmsnorm_zero_centred",
        "add_rmsnorm",
        "qk_norm",
        "gated_rmsnorm",
        "gated_rmsnorm_grouped",
        "rmsnorm_eps_outside",
        "scalenorm",
    ),
    "FP8 and other scaled results": (
        "rmsnorm_quantized_row",
        "rmsnorm_quantized_group",
        "rmsnorm_quantized_tensor",
        "rmsnorm_quantized_static",
        "rmsnorm_fp8",
    ),
    "Layer normalization": ("layernorm", "layernorm_zero_centred", "add_layernorm"),
    "Softmax": ("softmax", "log_softmax", "softmax2d"),
    "Diffusion": (
        "adaln_modulate",
        "adaln_zero",
        "adagn",
        "groupnorm",
        "groupnorm_silu",
        "groupnorm_channels_last",
        "groupnorm_silu_channels_last",
    ),
    "Images": (
        "batchnorm",
        "batchnorm_channels_last",
        "instancenorm",
        "layernorm2d",
        "rmsnorm2d",
        "local_response_norm",
        "local_response_norm_recomputed",
        "local_response_norm_within",
    ),
    "Weights and vectors": ("weight_norm", "weight_standardization", "l2norm"),
    "In place of a norm": ("dyt", "derf"),
}
# Integers that a spec leaves to the caller.
ATTRS: Mapping[str, int] = {"groups": 32, "head_dim": 128}
DTYPE, ARCH = "bf16", "sm_90"


def gallery() -> Iterable[Page]:
    """A page per bundled spec, in the place of its file: links to `specs/x.norm` lead here."""
    yield Page("gallery/index.md", "docs/gallery/index.md", index())
    names = bundled.names()
    with ProcessPoolExecutor(2) as pool:
        for name, text in zip(names, pool.map(_kept, names), strict=True):
            yield Page(f"gallery/{name}.md", f"specs/{name}.norm", text)


def _kept(name: str) -> str:
    """The page of a spec, generated again when any of its sources changed."""
    made_of = ("specs/" + name + ".norm", "docs/specs.md", f"{RESULTS}/results.json")
    texts = [(ROOT / file).read_text(encoding="utf-8") for file in made_of]
    own = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "tools" / "docs").glob("*.py"))]
    return kept("gallery", (sources(), name, *texts, *own), lambda: page(name).encode()).decode()


def index() -> str:
    """The first page: the specs by what people look for."""
    lines = [
        "# Gallery",
        "",
        "Every norm that comes with normgen is a file of a few lines. Copy the nearest one, and change",
        "a line. The highlighted elements of a tensor share one statistic.",
        "",
    ]
    for group, names in GROUPS.items():
        lines += [f"## {group}", "", "| tensor | norm | what it is |", "|---|---|---|", *map(_row, names), ""]
    return "\n".join(lines)


def _row(name: str) -> str:
    picture = thumbnail(read_definition(name, attrs_of(name)))
    return f"| {picture} | [{name}]({name}.md) | {_cell(describe(name).doc)} |"


def page(name: str) -> str:
    """The page of one spec, as Markdown."""
    made = Compilation(read_definition(name, attrs_of(name)))
    setting = Setting(usual_sizes(made.package, {}), DTYPE, usual_machine(ARCH))
    found = explained(made, setting)
    parts = [
        _head(name, made),
        _formulas(made),
        _call(name, made),
        _saves(found),
        _bytes(found, setting),
        bandwidth(name),
        _kernel(name, found, made, setting),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def attrs_of(name: str) -> dict[str, object]:
    """Values of the attrs that a spec requires."""
    text = (ROOT / "specs" / f"{name}.norm").read_text(encoding="utf-8")
    declared = [line.partition('"')[0] for line in text.splitlines() if line.startswith("attr ")]
    return {attr: value for attr, value in ATTRS.items() for line in declared if _requires(line, attr)}


def _requires(line: str, attr: str) -> bool:
    """Whether a declaration is of this attr, without a value."""
    return re.fullmatch(rf"attr\s+{attr}\s*:\s*int\s*(>=?\s*\d+)?\s*", line) is not None


@cache
def users() -> dict[str, str]:
    """Where each norm is found, from the tables of docs/specs.md."""
    found: dict[str, str] = {}
    column: int | None = None
    for line in (ROOT / "docs" / "specs.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            column = None
        elif cells[0] == "spec":
            column = cells.index("where it is found") if "where it is found" in cells else None
        elif column is not None and column < len(cells):
            found |= dict.fromkeys(re.findall(r"`(\w+)`", cells[0]), cells[column])
    return {name: text for name, text in found.items() if text}


def _head(name: str, made: Compilation) -> str:
    package = made.package
    used = f"\n\nFound in {users()[name]}." if name in users() else ""
    return f"# {name}\n\n{package.doc}{used}\n\n```norm\n{package.spec.strip()}\n```"


def _formulas(made: Compilation) -> str:
    parts = ["## Formulas"]
    for title, program in made.programs:
        parts += [f"### {title.capitalize()}", _markup(formulas_html(program))]
    if made.derived is None:
        parts.append("It has no derivative.")
    return "\n\n".join(parts)


def _call(name: str, made: Compilation) -> str:
    norm, attrs = Norm(made.package), attrs_of(name)
    given = "".join(f", {attr}={value}" for attr, value in attrs.items())
    calls = [f'norm = normgen.load("{name}"{given})']
    calls += [_wrapped(f"norm{inspect.signature(norm)}")]
    calls += [
        _wrapped(f"norm.{title}{inspect.signature(getattr(norm, title))}") for title, _ in made.programs
    ]
    directions = [norm.dispatcher(title).direction for title, _ in made.programs]
    said = dict(pair for each in reversed(directions) for pair in _arguments(made, each))
    rows = [f"| `{argument}` | {_cell(text)} |" for argument, text in said.items()]
    body = "\n".join(calls)
    table = "\n".join(["| argument | what it is |", "|---|---|", *rows])
    torch = f'In PyTorch: `normgen.torch.load("{name}"{given})` takes and returns tensors.'
    return f"## Calls\n\n```python\n{body}\n```\n\n{table}\n\n{torch}"


def _arguments(made: Compilation, direction: Any) -> Iterator[tuple[str, str]]:
    options = {option.name for option in direction.options}
    for argument, text in sections(made.package, direction)["Args"]:
        if argument not in options and "not read here" not in text:
            yield argument, text.partition("; needed")[0]


def _saves(found: Sequence[Explained]) -> str:
    forward = found[0].flow.arrays
    saves = [each for each in forward.values() if each.kind == "save"]
    if not found[1:]:
        return ""
    kinds = ("input", "param", "saved")
    reads = [each.name for each in found[1].flow.arrays.values() if each.kind in kinds]
    lines = ["## What is saved", ""]
    if saves:
        lines += ["| array | shape | type | bytes |", "|---|---|---|---|"]
        for each in saves:
            shape = " × ".join(map(str, each.shape)) or "1"
            lines.append(f"| `{each.name}` | {shape} | {each.dtype} | {bytes_text(each.bytes)} |")
    else:
        lines.append("The backward needs only operands and outputs.")
    read = ", ".join(f"`{name}`" for name in reads)
    return "\n".join([*lines, "", f"The backward reads {read}." if read else ""]).rstrip()


def _bytes(found: Sequence[Explained], setting: Setting) -> str:
    parts = ["## Bytes", f"For {setting.text}. The width of a band is proportional to its bytes."]
    for each in found:
        parts += [f"### {each.name.capitalize()}: {each.moved}", _markup(f"<div>{each.picture}</div>")]
    return "\n\n".join(parts)


def _kernel(name: str, found: Sequence[Explained], made: Compilation, setting: Setting) -> str:
    forward = found[0]
    listing = code_of(forward, made.definition, setting)
    code = "\n".join(unescape(re.sub("<[^>]*>", "", line.html)) for line in listing.kernels).strip()
    said = "\n".join(line for each in found for line in _schedule(each))
    given = "".join(f" --attr {attr}={value}" for attr, value in attrs_of(name).items())
    return (
        f"## Kernels\n\n```text\n{said}\n```\n\n"
        f"This page in full, with both directions and links between spec and statements:\n\n"
        f"```console\n$ normgen explain {name}{given} --html -o {name}.html\n```\n\n"
        f"The forward, without the device functions that it calls:\n\n```cuda\n{code}\n```"
    )


def _schedule(each: Explained) -> Iterator[str]:
    yield each.name
    for depth, line in each.schedule:
        indent = "  " * (depth + 1)
        yield from textwrap.wrap(line, 92, initial_indent=indent, subsequent_indent=indent + "    ")


def _markup(html: str) -> str:
    """HTML in Markdown, in which no brackets are links."""
    return html.replace("[", "&#91;").replace("]", "&#93;")


def _wrapped(call: str) -> str:
    """A call with its parameters, on as many lines as it takes."""
    return "\n".join(textwrap.wrap(call, 88, subsequent_indent="    ", break_long_words=False))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("[", "\\[").replace("<", "&lt;")
