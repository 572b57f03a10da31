"""The form in which a thread has one place of a plane and walks along the windows: neighbours are its own."""

from __future__ import annotations

from normgen.families.windows.compile.form import Context, ends_of
from normgen.families.windows.compile.image import Walk
from normgen.families.windows.compile.text import WindowsText
from normgen.ir.expr import Expr, Reduce
from normgen.ir.show import show
from normgen.kernel.access import Access
from normgen.kernel.printer import Printer
from normgen.kernel.text import digits_of


class Pixels(Walk):
    """Every value is an array over the channels of a part. A pass `lag` channels behind those that arrive
    looks at values so many places before the end: their arrays begin with what they keep of earlier parts.
    """

    name = "pixels"

    def __init__(self, text: WindowsText, early: dict[Expr, str]) -> None:
        super().__init__(text, early)
        plan = self.plan
        self._lags = [sum(high for _, high in plan.reaches[:k]) for k in range(len(plan.reaches) + 1)]
        self._own = dict.fromkeys((o.tensor.name for o in plan.operands), 0)  # lags at which values are made
        self._own |= {text.sums[s]: self._lags[k + 1] for k, level in enumerate(plan.levels) for s in level}
        self._own |= dict.fromkeys(early.values(), self._lags[-2])
        self._kept = dict.fromkeys(self._own, 0)
        for roots, known, lag in self._passes():
            tensors, sums = ends_of(roots, known)
            for value in (*tensors, *(text.sums[s] for s in sums), *(early[e] for e in known)):
                self._kept[value] = max(self._kept[value], lag - self._own[value])

    def _passes(self) -> list[tuple[list[Expr], list[Expr], int]]:
        """What each pass computes, what it need not since an earlier one has, and its lag."""
        levels = [[s.arg for s in level] for level in self.plan.levels]
        levels[-1] += self._early
        found: list[tuple[list[Expr], list[Expr], int]] = [
            (roots, [], lag) for roots, lag in zip(levels, self._lags, strict=False)
        ]
        return [*found, ([r.expr for r in self.plan.results], list(self._early), self._lags[-1])]

    def context(self) -> Context:
        plan, text = self.plan, self.text
        wide = [text.read(o, self._offset(o)) for o in plan.operands if o.inner]
        levels = [self._pass(k) for k in range(len(plan.levels))]
        final = self.final(self._printer(self._lags[-1], self._early)) | _behind(self._lags[-1])
        for store, result in zip(final["stores"], plan.results, strict=True):
            store |= {"rows": text.result(result).rows, "wanted": text.wants[result.tensor.name]}
        arrays = {text.ids[a.operand.tensor.name]: self._kept[a.operand.tensor.name] for a in wide}
        arrays |= {name: self._kept[name] for name in [*text.sums.values(), *self._early.values()]}
        arrays |= {s["value"]: s["kept"] for level in levels for s in level["sums"]}
        return {
            "digits": digits_of(plan.outer, "image", always=True),
            "vectors": wide,
            "scalars": self.scalars(),
            "bases": self.bases(wide),
            "arrays": [f"{name}[{_sized(kept)}] = {{}}" for name, kept in arrays.items()],
            "carried": [name for name, kept in arrays.items() if kept],
            "lead": -sum(low for low, _ in plan.reaches),
            "levels": levels,
            "final": final,
        }

    def bases(self, wide: list[Access]) -> list[str]:
        """Where a thread's pixel lies in the chunk that comes next, and where the rows of its block begin."""
        results = [self.text.result(r) for r in self.plan.results]
        at = [(a, f"{a.pointer}{self._offset(a.operand)}") for a in (*wide, *results)]
        reads = [
            f"const {a.type}* {a.image} = whole_address({begin} + pixel + arriving * PLANE);"
            for a, begin in at[: len(wide)]
        ]
        writes = [
            f"{a.type}* const {a.image} = whole_address({begin} + begin);" for a, begin in at[len(wide) :]
        ]
        return [*reads, *writes]

    def address(self, access: Access) -> str:
        return f"{access.image} + channel * PLANE"

    def _printer(self, lag: int, known: dict[Expr, str] | None = None) -> Printer:
        """A printer for a pass: it knows what earlier ones have found, by where that is now."""

        def at(value: str) -> str:
            offset = self._kept[value] - (lag - self._own[value])
            return f"[{offset} + i]" if offset else "[i]"

        values = {
            o.tensor.name: self.text.ids[o.tensor.name] + (at(o.tensor.name) if o.inner else "")
            for o in self.plan.operands
        }
        printer = self.text.printer(values, "")
        printer.names |= {
            node: name + at(name) for node, name in self.text.sums.items() if self._own[name] <= lag
        }
        printer.names |= {node: name + at(name) for node, name in (known or {}).items()}
        return printer

    def _pass(self, k: int) -> Context:
        text, sums = self.text, self.plan.levels[k]
        early = self._early if k == len(self.plan.levels) - 1 else {}
        raised, statements, values = text.passes(
            [*(s.arg for s in sums), *early], self._printer(self._lags[k]), self.element
        )
        found = [self._window(s, self.plan.reaches[k][1]) for s in sums]
        targets = [f"{s['value']}[{_after(s['kept'])}]" for s in found]
        targets += [f"{name}[{_after(self._kept[name])}]" for name in early.values()]
        statements += [f"{target} = {v};" for target, v in zip(targets, values, strict=True)]
        return {
            "comment": ", ".join(show(s, text.constants) for s in sums),
            "raised": raised,
            "statements": statements,
            "sums": found,
        } | _behind(self._lags[k])

    def _window(self, node: Reduce, reach: int) -> Context:
        """A window's terms begin with its lowest neighbour of the first channel of the pass that follows."""
        low, high = self.plan.bounds(node)
        return {
            "name": self.text.sums[node],
            "value": self.text.terms[node],
            "count": high - low + 1,
            "kept": reach - low,
        }


def _behind(lag: int) -> Context:
    """Which channels a pass is about."""
    return {"lag": lag, "behind_by": f" - {lag}" if lag else ""}


def _after(kept: int) -> str:
    return f"{kept} + i" if kept else "i"


def _sized(kept: int) -> str:
    return f"{kept} + PART" if kept else "PART"
