"""The forms for images in one piece of memory: spans of adjacent neighbours, and walks from end to end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from normgen.families.windows.compile.text import View, WindowsText, ends_of
from normgen.ir.expr import Expr, Reduce
from normgen.ir.show import show
from normgen.kernel.access import Access
from normgen.kernel.forms import Context
from normgen.kernel.group import Order
from normgen.kernel.plan import Operand
from normgen.kernel.printer import Printer
from normgen.kernel.text import digits_of


class Image(View):
    """A form that addresses images by the offset of an element: a pass for each level of sums, and one for
    the results. `wide`: operands with an element for each place of an image."""

    def __init__(self, text: WindowsText) -> None:
        super().__init__(text)
        self.wide = [a for a in self.reads if a.operand.inner]
        self.last = len(self.plan.levels)  # the number of the pass for the results

    def strides(self, operand: Operand) -> Order:
        return operand.kept

    def sizes(self) -> set[str]:
        return set(self.plan.outer[1:])

    def address(self, access: Access) -> str:
        return f"{access.pointer}{access.offset} + at"

    def context(self) -> Context:
        single = [a for a in self.reads if not a.operand.inner]
        return {
            "digits": digits_of(self.plan.outer, "image", always=True),
            "vectors": self.wide,
            "scalars": [f"const float {a.value} = {a.load};" for a in single],
            "sums": list(self.text.sums.values()),
            "levels": [self.level(k) for k in range(self.last)],
            "final": self.final(self.printer(self.last)) | self.place(self.last),
        }

    def early(self, k: int) -> dict[Expr, str]:
        """Parts of the results that a pass computes beside the terms of its sums."""
        return self.text.early if k == self.last - 1 else {}

    def roots(self, k: int) -> list[Expr]:
        """What a pass computes."""
        if k == self.last:
            return self.plan.roots
        return [*(s.arg for s in self.plan.levels[k]), *self.early(k)]

    def names(self, k: int) -> list[str]:
        """The arrays that the pass of a level fills."""
        return [*(self.text.terms[s] for s in self.plan.levels[k]), *self.early(k).values()]

    def level(self, k: int) -> Context:
        """The pass that adds up the sums of a level."""
        text, sums = self.text, self.plan.levels[k]
        raised, statements, values = text.passes(self.roots(k), self.printer(k), self.element)
        targets = [self.at(name) for name in self.names(k)]
        statements += [f"{target} = {v};" for target, v in zip(targets, values, strict=True)]
        return {
            "comment": ", ".join(show(s, text.constants) for s in sums),
            "raised": raised,
            "statements": statements,
            "sums": [{"name": text.sums[s], "value": text.terms[s]} | self.window(s) for s in sums],
        } | self.place(k)

    def printer(self, k: int) -> Printer:
        """A printer for a pass: it knows what earlier ones have found, by where that is now."""
        raise NotImplementedError

    def at(self, name: str) -> str:
        """Where a pass puts the element of a value."""
        raise NotImplementedError

    def place(self, k: int) -> Context:
        """Which elements a pass is about."""
        raise NotImplementedError

    def window(self, node: Reduce) -> Context:
        """What adds the terms of a sum up."""
        raise NotImplementedError


class Whole(Image):
    """A form whose passes load what they need: `size` elements of each operand."""

    size: ClassVar[str]
    index: ClassVar[str]  # of an element of a windowed sum

    def printer(self, k: int) -> Printer:
        values = {a.tensor: a.value + ("", self.element)[bool(a.operand.inner)] for a in self.reads}
        printer = self.text.printer(values, self.index)
        if k == self.last:
            printer.names |= {node: f"{name}{self.element}" for node, name in self.text.early.items()}
        return printer

    def at(self, name: str) -> str:
        return f"{name}{self.element}"

    def window(self, node: Reduce) -> Context:
        (low, high), (left, right) = self.plan.bounds(node), self.plan.bounds_across(node)
        return {"low": low, "high": high, "left": left, "right": right}

    def level(self, k: int) -> Context:
        return super().level(k) | {
            "vectors": self._loaded(self.roots(k)),
            "declared": [f"{name}[{self.size}]" for name in self.names(k)],
            "early": list(self.early(k).values()),
            "awaited": [],
        }

    def final(self, printer: Printer) -> Context:
        final = super().final(printer)
        return final | {
            "vectors": self._loaded(self.roots(self.last), self.text.early),
            "declared": [f"{store['value']}[VEC]" for store in final["stores"]],
            "early": [],
            "awaited": list(self.text.early.values()),
        }

    def _loaded(self, roots: list[Expr], known: Iterable[Expr] = ()) -> list[Access]:
        tensors, _ = ends_of(roots, known)
        return [a for a in self.wide if a.tensor in tensors]


class Span(Whole):
    """A thread owns VEC adjacent elements and reads those around them too. HALO of them at either side."""

    element, size, index = "[HALO + i]", "SPAN", "[HALO + i]"

    def context(self) -> Context:
        return super().context() | {"halo": self._halo(0)}

    def place(self, k: int) -> Context:
        halo = self._halo(k)
        inside = halo == "0"
        first, last = ("0", "VEC") if inside else (f"-{halo}", f"VEC + {halo}")
        return {"halo": halo, "halo_after": self._halo(k + 1), "first": first, "last": last}

    def _halo(self, k: int) -> str:
        """How many neighbours on either side a level and those after it reach."""
        steps = sum(max(-low, high) for low, high in self.plan.reaches[k:])
        return {0: "0", 1: "REACH"}.get(steps, f"{steps} * REACH")


class Walk(Image):
    """A form that walks along the windows, where what a pass is about lags behind what arrives."""

    step: ClassVar[str]  # from one neighbour to the next, as a factor

    def place(self, k: int) -> Context:
        lag = self.plan.lags[k]
        return {"lag": lag, "behind_by": f" - {lag}{self.step}" if lag else ""}

    def context(self) -> Context:
        return super().context() | {"lead": self.plan.lead}


class March(Walk, Whole):
    """A thread walks along an image in steps of VEC elements; the sums of several steps are under way."""

    size, index, step = "VEC", "[place][i]", " * pitch"

    def context(self) -> Context:
        begin = [f"{a.image} = whole_address({a.pointer}{a.offset});" for a in (*self.wide, *self.writes)]
        types = [*(f"const {a.type}*" for a in self.wide), *(f"{a.type}*" for a in self.writes)]
        found = super().context() | {
            "bases": [f"{kind} const {base}" for kind, base in zip(types, begin, strict=True)],
            "early": list(self.text.early.values()),
            "waiting": self.plan.reaches[-1][1] + 1,
            "boxed": self.plan.boxed,
        }
        first = sum(high - low for low, high in self.plan.reaches)
        return found | {"final": found["final"] | {"begin": first}}

    def address(self, access: Access) -> str:
        return f"{access.image} + at"


class Pixels(Walk):
    """Every value is an array over the channels of a part. A pass that lags behind what arrives looks at
    values so many places before the end: their arrays begin with what they keep of earlier parts.

    `made`: by value the pass that makes it; `kept`: how many places of earlier parts its array has.
    """

    step = ""

    def __init__(self, text: WindowsText) -> None:
        super().__init__(text)
        plan, last = self.plan, self.last
        self._lag = dict.fromkeys((o.tensor.name for o in plan.operands), 0)  # at which values are made
        self._lag |= {text.sums[s]: plan.lags[k + 1] for k, level in enumerate(plan.levels) for s in level}
        self._lag |= dict.fromkeys(text.early.values(), plan.lags[last - 1])
        self._kept = dict.fromkeys(self._lag, 0)
        for k in range(last + 1):
            known = text.early if k == last else {}
            tensors, sums = ends_of(self.roots(k), known)
            for value in (*tensors, *(text.sums[s] for s in sums), *known.values()):
                self._kept[value] = max(self._kept[value], plan.lags[k] - self._lag[value])
        # a window's terms begin with its lowest neighbour of the first channel of the pass that follows
        for (_, ahead), level in zip(plan.reaches, plan.levels, strict=True):
            self._kept |= {text.terms[s]: ahead - plan.bounds(s)[0] for s in level}

    def context(self) -> Context:
        text = self.text
        values = [a.tensor for a in self.wide]
        values += [*text.sums.values(), *text.early.values(), *text.terms.values()]
        kept = {text.ids.get(value, value): self._kept[value] for value in values}
        sizes = {name: f"{count} + PART" if count else "PART" for name, count in kept.items()}
        return super().context() | {
            "bases": [*map(self._read_base, self.wide), *map(self._write_base, self.writes)],
            "arrays": [f"{name}[{size}] = {{}}" for name, size in sizes.items()],
            "carried": [name for name, count in kept.items() if count],
        }

    def _read_base(self, a: Access) -> str:
        """Where a thread's pixel lies in the chunk that comes next."""
        at = f"{a.pointer}{a.offset} + pixel + arriving * PLANE"
        return f"const {a.type}* {a.image} = whole_address({at});"

    def _write_base(self, a: Access) -> str:
        """Where the rows of a block begin."""
        return f"{a.type}* const {a.image} = whole_address({a.pointer}{a.offset} + begin);"

    def address(self, access: Access) -> str:
        return f"{access.image} + channel * PLANE"

    def printer(self, k: int) -> Printer:
        lag, text = self.plan.lags[k], self.text

        def now(value: str) -> str:
            offset = self._kept[value] - (lag - self._lag[value])
            return f"[{offset} + i]" if offset else "[i]"

        values = {a.tensor: a.value for a in self.reads}
        values |= {name: values[name] + now(name) for name in (a.tensor for a in self.wide)}
        printer = text.printer(values)
        known = {node: name for node, name in text.sums.items() if self._lag[name] <= lag}
        known |= text.early if k == self.last else {}
        printer.names |= {node: name + now(name) for node, name in known.items()}
        return printer

    def at(self, name: str) -> str:
        kept = self._kept[name]
        return f"{name}[{kept} + i]" if kept else f"{name}[i]"

    def window(self, node: Reduce) -> Context:
        low, high = self.plan.bounds(node)
        return {"count": high - low + 1}
