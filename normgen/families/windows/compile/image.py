"""The forms for images in one piece of memory: a march from end to end, and spans of adjacent neighbours."""

from __future__ import annotations

from collections.abc import Iterable

from normgen.families.windows.compile.form import Context, Form, ends_of
from normgen.families.windows.compile.plan import Order, is_costly
from normgen.families.windows.compile.text import WindowsText
from normgen.ir.expr import Expr, Reduce, children, walk
from normgen.ir.nodes import is_condition
from normgen.ir.show import show
from normgen.kernel.access import Access
from normgen.kernel.plan import Operand
from normgen.kernel.printer import Printer
from normgen.kernel.text import digits_of
from normgen.package.operands import axis_name


class Image(Form):
    """A form that addresses images by the offset of an element."""

    span: str  # how many elements the arrays of a pass have

    def strides(self, operand: Operand) -> Order:
        return operand.kept

    def sizes(self) -> set[str]:
        return set(self.plan.outer[1:])

    def _offset(self, operand: Operand) -> str:
        return "".join(
            f" + at_{axis_name(a)} * {self.text.stride(operand.tensor.name, a)}" for a in operand.kept
        )

    def address(self, access: Access) -> str:
        return f"{access.pointer}{self._offset(access.operand)} + at"

    def context(self) -> Context:
        plan, text = self.plan, self.text
        wide = [text.read(o, self._offset(o)) for o in plan.operands if o.inner]
        values = {a.operand.tensor.name: f"{a.value}{self.element}" for a in wide}
        values |= {o.tensor.name: text.ids[o.tensor.name] for o in plan.operands if not o.inner}
        printer = text.printer(values, self.index)
        reach, across = [max(-low, high) for low, high in plan.reaches], plan.reaches_across
        lags = [sum(high for _, high in plan.reaches[:k]) for k in range(len(reach) + 1)]
        halos = [_halo(sum(reach[k:]), sum(across[k:])) for k in range(len(reach) + 1)]
        early = self.early
        levels = [self._level(k, wide, printer) | _places(lags[k], halos[k]) for k in range(len(reach))]
        for k, level in enumerate(levels):
            level["halo_after"] = halos[k + 1]
        printer.names |= {node: f"{name}{self.element}" for node, name in early.items()}
        final = self.final(printer)
        final |= {
            "vectors": self._vectors([r.expr for r in plan.results], wide, early),
            "declared": [f"{s['value']}[VEC]" for s in final["stores"]],
            "begin": sum(high - low for low, high in plan.reaches),
            "early": [],
            "awaited": list(early.values()),
        } | _places(lags[-1], "0")
        return {
            "digits": digits_of(plan.outer, "image", always=True),
            "vectors": wide,
            "scalars": self.scalars(),
            "bases": self.bases(wide),
            "sums": list(text.sums.values()),
            "early": list(early.values()),
            "waiting": plan.reaches[-1][1] + 1,
            "halo": halos[0],
            "boxed": plan.boxed,
            "lead": -sum(low for low, _ in plan.reaches),
            "levels": levels,
            "final": final,
        }

    def scalars(self) -> list[str]:
        """Statements that read the operands with one element for an image."""
        single = [self.text.read(o, self._offset(o)) for o in self.plan.operands if not o.inner]
        return [f"const float {a.value} = {a.load};" for a in single]

    @property
    def index(self) -> str:
        """How an element of a windowed sum is addressed."""
        return self.element

    def bases(self, wide: list[Access]) -> list[str]:
        """Statements that say where images begin."""
        del wide
        return []

    def _level(self, k: int, wide: list[Access], printer: Printer) -> Context:
        sums = self.plan.levels[k]
        early = self.early if k == len(self.plan.levels) - 1 else {}
        roots = [*(s.arg for s in sums), *early]
        raised, statements, values = self.text.passes(roots, printer, self.element)
        names = [self.text.terms[s] for s in sums]
        targets = [*names, *early.values()]
        statements += [f"{n}{self.element} = {v};" for n, v in zip(targets, values, strict=True)]
        return {
            "comment": ", ".join(show(s, self.text.constants) for s in sums),
            "vectors": self._vectors(roots, wide),
            "declared": [f"{n}[{self.span}]" for n in targets],
            "raised": raised,
            "statements": statements,
            "sums": [self._sum(s, n) for s, n in zip(sums, names, strict=True)],
            "early": list(early.values()),
            "awaited": [],
        }

    def _sum(self, node: Reduce, value: str) -> Context:
        low, high = self.plan.bounds(node)
        left, right = self.plan.bounds_across(node)
        name = self.text.sums[node]
        return {"name": name, "value": value, "low": low, "high": high, "left": left, "right": right}

    @staticmethod
    def _vectors(roots: list[Expr], wide: list[Access], known: Iterable[Expr] = ()) -> list[Access]:
        loaded = ends_of(roots, known)[0]
        return [a for a in wide if a.operand.tensor.name in loaded]


class Span(Image):
    name, element, span = "span", "[HALO + i]", "SPAN"


class Walk(Image):
    """A form that walks along the windows. `early`: parts of the results that it computes beside the terms of
    the last sums, by name."""

    def __init__(self, text: WindowsText, early: dict[Expr, str]) -> None:
        super().__init__(text)
        self._early = early

    @property
    def early(self) -> dict[Expr, str]:
        return self._early


class March(Walk):
    name, element, span = "march", "[i]", "VEC"

    @property
    def index(self) -> str:
        return "[place][i]"

    def bases(self, wide: list[Access]) -> list[str]:
        results = [self.text.result(r) for r in self.plan.results]
        places = {
            f"{a.type}* const {a.image}": f"{a.pointer}{self._offset(a.operand)}" for a in [*wide, *results]
        }
        reads = {a.type for a in wide}
        return [
            f"{'const ' if place.split('*')[0] in reads else ''}{place} = whole_address({begin});"
            for place, begin in places.items()
        ]

    def address(self, access: Access) -> str:
        return f"{access.image} + at"


def early_parts(text: WindowsText) -> dict[Expr, str]:
    """Names for the parts of a plan's results that are computed early."""
    found = _early([r.expr for r in text.plan.results], frozenset(text.plan.levels[-1]))
    return {node: text.names.take(f"early_{k}") for k, node in enumerate(found, 1)}


def _early(roots: list[Expr], last: frozenset[Reduce]) -> list[Expr]:
    """The largest parts of values that do not need the `last` sums, and take earlier ones or a function: they
    are computed beside the terms of the last sums, which may share what they need."""
    found: list[Expr] = []
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        below = list(walk(node))
        if isinstance(node, Reduce):
            continue
        if is_condition(node) or any(n in last for n in below):
            stack.extend(reversed(children(node)))
        elif any(isinstance(n, Reduce) or is_costly(n) for n in below) and node.axes:
            found.append(node)
    return list(dict.fromkeys(found))


def _halo(steps: int, across: int) -> str:
    """How many neighbours on either side `steps` steps and `across` elements of a row make."""
    drifting = {0: "", 1: "REACH"}.get(steps, f"{steps} * REACH")
    return " + ".join(part for part in (drifting, str(across) if across or not drifting else "") if part)


def _places(lag: int, halo: str) -> Context:
    """Which step a pass is about, and which elements around those of the thread."""
    return {
        "lag": lag,
        "behind_by": f" - {lag} * pitch" if lag else "",
        "halo": halo,
        "first": f"-({halo})" if "+" in halo else "0" if halo == "0" else f"-{halo}",
        "last": "VEC" if halo == "0" else f"VEC + {halo}",
    }
