"""The form in which a thread has one place of a plane and walks along the windows: neighbours are its own."""

from __future__ import annotations

from normgen.families.windows.compile.image import Walk
from normgen.families.windows.compile.text import WindowsText, ends_of
from normgen.ir.expr import Reduce
from normgen.kernel.access import Access
from normgen.kernel.forms import Context
from normgen.kernel.printer import Printer


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
        values = [a.operand.tensor.name for a in self.wide]
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

        values = {a.operand.tensor.name: a.value for a in self.reads}
        values |= {name: values[name] + now(name) for name in (a.operand.tensor.name for a in self.wide)}
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
