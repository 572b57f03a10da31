"""Hypothesis strategies for norms of channels and groups, of which there are many ways to run each.

`channel_specs()` draws the text of specs whose statistics go over some axes of `x`: of channels, whole or
split into groups `(G C)`, first or last in memory, of samples, and of a space, which `...` may stand for.
Params lie on the axes of channels, several on one set of axes as a rule; some have a default, some have
none. There are saves, statistics that are computed anew, states with their updates, a second statistic over
other axes, and inputs beside `x`. Every spec is right and tame, as those of `strategies` are.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy


@dataclass(frozen=True)
class Layout:
    """The dimensions of `x` in memory, the axes that statistics may go over, and those that params may lie
    on."""

    dims: tuple[str, ...]
    over: tuple[tuple[str, ...], ...]
    params: tuple[tuple[str, ...], ...]

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis, in the order of memory."""
        return tuple(axis for dim in self.dims for axis in dim.strip("()").split())

    def brackets(self, axes: frozenset[str]) -> str:
        """A tensor of these axes as the spec declares it: a dimension whole, where it has all of it."""
        dims: list[str] = []
        for dim in self.dims:
            mine = [axis for axis in dim.strip("()").split() if axis in axes]
            dims += [dim] if len(mine) == len(dim.strip("()").split()) else mine
        return f"[{', '.join(dims)}]"


_CHANNELS = (("C",),)
_GROUPS = (("G", "C"), ("G", "C"), ("C",), ("G",))
LAYOUTS = (
    Layout(("B", "(G C)", "..."), (("C", "..."), ("...",), ("B", "..."), ("C",), ("B", "C", "...")), _GROUPS),
    Layout(("B", "...", "(G C)"), (("...", "C"), ("...",), ("B", "..."), ("C",), ("G", "C")), _GROUPS),
    Layout(("B", "C", "..."), (("...",), ("B", "..."), ("C",), ("C", "...")), _CHANNELS),
    Layout(("...", "C"), (("C",), ("...",)), _CHANNELS),
    Layout(
        ("B", "C", "H", "W"),
        (("H", "W"), ("B", "H", "W"), ("C", "H", "W"), ("W",)),
        (*_CHANNELS, *_CHANNELS, ("H", "W")),
    ),
    Layout(("B", "S", "(G C)"), (("C",), ("S", "C"), ("B", "S"), ("S",)), _GROUPS),
    Layout(("B", "(G C)"), (("C",), ("B",), ("B", "C")), _GROUPS),
)
ACTIVATIONS = ("{}", "{}", "silu({})", "tanh({})", "x * sigmoid({})")


@st.composite
def _specs(draw: DrawFn) -> str:
    def chance(percent: int) -> bool:
        return draw(st.integers(0, 99)) < percent

    layout = draw(st.sampled_from(LAYOUTS))
    full = frozenset(layout.axes)
    over = draw(st.sampled_from(layout.over))
    lines = ["norm drawn", "attr eps > 0 = 0.1"]
    lines += ["axis G = 2"] if "G" in full else []
    lines.append(f"input x{layout.brackets(full)}")
    value = "x"
    if chance(15):
        lines.append(f"input r{layout.brackets(full)}")
        value = "h"
    factors, shifts = [], []
    usual = frozenset(draw(st.sampled_from(layout.params)))
    for name in ("w", "g", "v", "b", "c")[: draw(st.integers(1, 5))] if chance(90) else ():
        axes = usual if chance(70) else frozenset(draw(st.sampled_from(layout.params)))
        shift = name in "bc"
        default = ("0" if shift else "1") if chance(75) else ""
        lines.append(f"param {name}{layout.brackets(axes)}{f' = {default}' if default else ''}")
        (shifts if shift else factors).append(name)
    if chance(15) and "B" in full:
        axes = usual | {"B"}
        lines.append(f"input s{layout.brackets(axes)}")
        factors.append("(1 + 0.25 * s)")
    kept = full - set(over)
    brackets = layout.brackets(kept)
    update = ""
    if kept and not kept & {"B", "...", "S"} and chance(60):
        lines.append(f"state running{brackets} = 1")
        update = "update running = lerp(running, {}, 0.25)"
        if chance(20):
            shifts.append("0.1 * running")
            # The backward needs the state as it was.
            lines.append(f"save running_before{brackets} = running")
    if value == "h":
        keep = draw(st.sampled_from(("let", "let", "save output")))
        lines.append(f"{keep} h{layout.brackets(full) if keep != 'let' else ''} = x + r")

    def statistic(name: str, text: str) -> str:
        lines.append(f"save {name}{brackets} = {text}" if chance(70) else f"let {name} = {text}")
        return name

    reduced = ", ".join(over)
    # (a sum of two inputs may be anywhere near a kink)
    kinds = (
        "rms",
        "rms",
        "moments",
        "moments",
        "variance",
        *(("largest", "absolute") if value == "x" else ()),
    )
    kind = draw(st.sampled_from(kinds))
    match kind:
        case "rms":
            known = statistic("phi", f"mean[{reduced}]({value}^2)")
            core = [value, f"rsqrt({known} + eps)"]
        case "moments":
            mean = statistic("mu", f"mean[{reduced}]({value})")
            known = statistic("rstd", f"rsqrt(mean[{reduced}](({value} - {mean})^2) + eps)")
            core = [f"({value} - {mean})", known]
        case "variance":
            known = statistic("deviation", f"sqrt(var[{reduced}]({value}) + eps)")
            core = [value, f"1 / {known}"]
        case "largest":
            known = statistic("top", f"max[{reduced}](abs({value}))")
            core = [value, f"1 / ({known} + eps)"]
        case _:
            known = statistic("top", f"mean[{reduced}](abs({value}))")
            core = [value, f"1 / ({known} + eps)"]
    product = " * ".join([core[0], *(f"({c})" for c in core[1:]), *factors])
    if chance(25) and factors:
        gate = " * ".join(factors[:1])
        product = (
            f"{value} * sigmoid({gate} * {value}) * ({core[1]}){''.join(f' * {f}' for f in factors[1:])}"
        )
    whole = " + ".join([product, *shifts])
    whole = draw(st.sampled_from(ACTIVATIONS)).format(whole)
    if chance(15):
        other = ", ".join(draw(st.sampled_from(layout.over)))
        whole = f"{whole} - 0.5 * mean[{other}](x)"
    lines.append(f"output y{layout.brackets(full)} = {whole}")
    if update:
        lines.append(update.format(known))
    if chance(15) and kept:
        summed = " * ".join([f"tanh({value})", *factors[:1]])
        lines.append(f"output total{brackets}: f32 = mean[{reduced}]({summed})")
    return "\n".join(lines) + "\n"


def channel_specs() -> SearchStrategy[str]:
    """Texts of specs of channels without a fault."""
    return _specs()
