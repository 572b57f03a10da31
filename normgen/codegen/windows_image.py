"""The forms for images in one piece of memory: a march from end to end, and spans of adjacent neighbours."""

from __future__ import annotations

from normgen.codegen.access import Access
from normgen.codegen.plan import Operand
from normgen.codegen.printer import Printer
from normgen.codegen.text import digits_of
from normgen.codegen.windows import Order
from normgen.codegen.windows_form import Context, Form, ends_of
from normgen.ir.expr import Expr, Reduce
from normgen.ir.show import show
from normgen.runtime.records import axis_name


class _Image(Form):
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
        scalars = []
        for operand in plan.operands:
            if not operand.inner:
                access = text.read(operand, self._offset(operand))
                values[operand.tensor.name] = access.value
                scalars.append(f"const float {access.value} = {access.load};")
        printer = text.printer(values, self.index)
        reach, across = [max(-low, high) for low, high in plan.reaches], plan.reaches_across
        lags = [sum(high for _, high in plan.reaches[:k]) for k in range(len(reach) + 1)]
        begins = [sum(high - low for low, high in plan.reaches[:k]) for k in range(len(reach) + 1)]
        halos = [_halo(sum(reach[k:]), sum(across[k:])) for k in range(len(reach) + 1)]
        levels = [self._level(k, wide, printer) | _places(lags[k], halos[k]) for k in range(len(reach))]
        for k, level in enumerate(levels):
            level |= {"halo_after": halos[k + 1], "begin": begins[k]}
        final = self.final(printer)
        roots = [r.expr for r in plan.results]
        final |= {
            "vectors": self._vectors(roots, wide),
            "declared": [f"{s['value']}[VEC]" for s in final["stores"]],
            "begin": begins[-1],
        } | _places(lags[-1], "0")
        return {
            "digits": digits_of(plan.outer, "image", always=True),
            "vectors": wide,
            "scalars": scalars,
            "sums": list(text.sums.values()),
            "halo": halos[0],
            "boxed": plan.boxed,
            "lead": -sum(low for low, _ in plan.reaches),
            "levels": levels,
            "final": final,
        }

    @property
    def index(self) -> str:
        """How an element of a windowed sum is addressed."""
        return self.element

    def _level(self, k: int, wide: list[Access], printer: Printer) -> Context:
        sums = self.plan.levels[k]
        raised, statements, values = self.text.passes([s.arg for s in sums], printer, self.element)
        names = [self.text.terms[s] for s in sums]
        statements += [f"{n}{self.element} = {v};" for n, v in zip(names, values, strict=True)]
        return {
            "comment": ", ".join(show(s, self.text.constants) for s in sums),
            "vectors": self._vectors([s.arg for s in sums], wide),
            "declared": [f"{n}[{self.span}]" for n in names],
            "raised": raised,
            "statements": statements,
            "sums": [self._sum(s, n) for s, n in zip(sums, names, strict=True)],
        }

    def _sum(self, node: Reduce, value: str) -> Context:
        low, high = self.plan.bounds(node)
        left, right = self.plan.bounds_across(node)
        name = self.text.sums[node]
        return {"name": name, "value": value, "low": low, "high": high, "left": left, "right": right}

    @staticmethod
    def _vectors(roots: list[Expr], wide: list[Access]) -> list[Access]:
        loaded = ends_of(roots)[0]
        return [a for a in wide if a.operand.tensor.name in loaded]


class Span(_Image):
    name, element, span = "span", "[HALO + i]", "SPAN"


class March(_Image):
    name, element, span = "march", "[i]", "VEC"

    @property
    def index(self) -> str:
        return "[place][i]"


def _halo(steps: int, across: int) -> str:
    """How many neighbours on either side `steps` steps and `across` elements of a row make."""
    drifting = {0: "", 1: "REACH"}.get(steps, f"{steps} * REACH")
    return " + ".join(part for part in (drifting, str(across) if across or not drifting else "") if part)


def _places(lag: int, halo: str) -> Context:
    """Which step a pass is about, and which elements around those of the thread."""
    return {
        "lag": lag,
        "behind": f" - {lag}" if lag else "",
        "halo": halo,
        "first": f"-({halo})" if "+" in halo else "0" if halo == "0" else f"-{halo}",
        "last": "VEC" if halo == "0" else f"VEC + {halo}",
    }
