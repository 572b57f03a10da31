"""The statements of a kernel: what is computed once per row, what per element, and after which exchange.

A value whose axes include none of the inner ones is the same for the whole row: it is computed once, after
the last exchange that it depends on (`place` 0 is before the first). In products and sums of mixed rates the
part of the row is gathered into one such value first, so that an element costs few operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set

from normgen.ir.expr import Expr, Load, Reduce, Round, Scalar, children, rewrite, walk
from normgen.ir.nodes import Told, is_condition
from normgen.ir.program import made_of_cotangents
from normgen.ir.show import show
from normgen.ir.ties import computed_ties
from normgen.kernel.access import Access, ColumnText
from normgen.kernel.identifiers import Numbered, identifier
from normgen.kernel.kept import costly, leaf_of, rounded
from normgen.kernel.levels import Exponentials, Level, is_missed
from normgen.kernel.phases import Phase, Rounded
from normgen.kernel.rates import Rates
from normgen.kernel.share import evaluated, share_products
from normgen.kernel.sums import Sums
from normgen.kernel.text import KernelText


class Body:
    """Collects the statements of a kernel. `phases[k]` is level k + 1; the last one writes the results.

    `values`: what expressions call operands, by tensor. `hold`: what costs much is kept for later passes;
    with `packs` also what is rounded to an element type.
    """

    def __init__(
        self,
        text: KernelText,
        levels: tuple[Level, ...],
        values: Mapping[str, str],
        hold: bool = False,
        packs: bool = False,
    ) -> None:
        plan, printer, names = text.plan, text.printer(values), text.scope()
        self._text, self._names, self._printer = text, names, printer
        self._numbered = Numbered()
        self.before: list[tuple[Expr, str]] = []  # values of the row that need no exchange
        self.phases = [Phase() for _ in levels] + [Phase()]
        self._place = {s: k + 1 for k, level in enumerate(levels) for s in level.sums}
        self._bindings = text.bindings
        self._hoisted_bindings: dict[Expr, Expr] = {}
        self._told: dict[tuple[Expr, ...], str] = {}  # what all ranks have, by what each tells
        self.levels = levels
        roots = plan.roots + [e for c in plan.columns for e in c.last]
        below = set(walk(*roots))
        self._uses = _uses_of(below, roots)
        gradients = made_of_cotangents([o.tensor for o in plan.operands], *roots)
        self.rates = Rates(frozenset(plan.inner), printer.names, self._uses, gradients)
        self._name_sums()
        self.sums = Sums(plan, printer, self._take, self.element)
        self.held: list[str] = []
        self._held = self._worth_keeping(packs) if hold else set[Expr]()
        self.rounded: dict[str, Rounded] = {}  # by the tensor that stands for it in later passes
        named = [b.expr for b in plan.bindings if b.expr in below and not self.rates.per_row(b.expr)]
        self._hoisted_bindings.update(zip(self.rates.hoist_all(named), named, strict=True))
        compared = dict.fromkeys(v for v, _ in computed_ties(*roots) if not self.rates.per_row(v))
        self._compared = [v for v in self.rates.hoist_all([*compared]) if v not in self._held]
        for k, level in enumerate(levels):
            self._level(k, level)

    def _worth_keeping(self, packs: bool) -> set[Expr]:
        plan = self._text.plan
        by_pass = [*([s.arg for s in level.sums] for level in self.levels), plan.roots]
        always = [*(len(plan.needing(level.sums)) == plan.wanted for level in self.levels), True]
        found = costly(self.rates, by_pass, always)
        return found | rounded(self.rates, by_pass) if packs else found

    # ------------------------------------------------------------------------------------------------ rates

    def place(self, node: Expr) -> int:
        """After how many exchanges the value can be computed."""
        return max((self._place.get(n, 0) for n in walk(node) if isinstance(n, Reduce)), default=0)

    @property
    def known(self) -> dict[Expr, str]:
        """Values of the row that have a name, for comments."""
        names = self._printer.names
        return {n: names[n] for n in names if self.rates.per_row(n) and not isinstance(n, Reduce)}

    def heading(self, k: int) -> list[str]:
        """What the pass of a phase is for, as comments."""
        if k == len(self.levels):
            return ["results"]
        sums = ", ".join(show(s, self.known) for s in self.levels[k].sums)
        return [f"exchange {k + 1}: {sums}"]

    def _take(self, node: Expr, otherwise: str) -> str:
        """A new name for a value without one in the spec. `otherwise`: of what kind it is, for a value whose
        expression is too long for a name."""
        return self._names.take(self._numbered.of(identifier(node, self._called), otherwise))

    def _called(self, node: Expr) -> str:
        """What the spec, or the text so far, calls a value."""
        return self._text.name_of(self.rates.leaves.get(node, node), self._printer.names)

    # ------------------------------------------------------------------------------------------------ rows

    def row_value(self, node: Expr) -> str:
        """The text of a value of the row, after giving it and what it shares with others a name."""
        for n in walk(node, into=self._parts_of_row):
            if isinstance(n, Told):
                self._name_told(n)
            if self.rates.atomic(n) or not self.rates.per_row(n) or is_condition(n):
                continue
            binding = self._bindings.get(n)
            if n is node or binding is not None or self._uses[n] > 1:
                self._name_row(n, binding.name if binding else "")
        return self._printer.text(node)

    def _parts_of_row(self, node: Expr) -> tuple[Expr, ...]:
        """What a value of the row is made of, once sums are there."""
        return () if isinstance(node, Reduce) or self.rates.atomic(node) else children(node)

    def _name_row(self, node: Expr, wanted: str) -> None:
        if self.rates.atomic(node):
            return
        text = self._printer.text(node)
        name = self._names.claim(wanted) if wanted else self._take(node, "row")
        comment = self.comment(node)
        called = self._printer.names[node] = self.called(node, name)
        statement = f"{'const float ' if called == name else ''}{called} = {text};{comment}"
        place = self.place(node)
        if place == 0:
            self.before.append((node, statement))
        else:
            self.phases[place - 1].rows.append(statement)

    def _name_told(self, node: Told) -> None:
        """Have ranks exchange values of a row, after the last reduction that these need."""
        if node.values not in self._told:
            values = ", ".join(map(self.row_value, node.values))
            name = self._told[node.values] = self._names.take("told")
            place = max(map(self.place, node.values))
            statement = f"const auto {name} = peers.exchange(row, rows, live, {values});"
            self.phases[place - 1].rows.append(statement)
        self._printer.names[node] = f"{self._told[node.values]}.value[{node.which}][{node.rank}]"

    def called(self, node: Expr, name: str) -> str:
        """What a value of the row is called in expressions. Kernels whose threads own several rows say which
        of `name`'s elements is meant.
        """
        return name

    def comment(self, node: Expr) -> str:
        """Where the spec gives the value a name, as the end of a statement."""
        return self._text.comment(node) or self._text.comment(self._hoisted_bindings.get(node, node))

    # ------------------------------------------------------------------------------------------------
    # elements

    def element(self, phase: Phase, roots: list[Expr]) -> list[str]:
        """The texts of element values; what they share becomes statements of the phase. A value that is
        compared with its own extreme is one by itself, that each pass has in the same words."""
        hoisted = self.rates.hoist_all(roots)
        present = set(evaluated(*hoisted))
        apart: dict[Expr, Expr] = {v: leaf_of(v) for v in self._compared if v in present}
        for value, leaf in apart.items():
            (text,) = self._element(phase, [value])
            name = self._take(value, "value")
            phase.statements.append(f"const float {name} = {text};")
            self._printer.names[leaf] = name
        texts = self._element(phase, [_with_leaves(root, apart) for root in hoisted])
        for leaf in apart.values():
            del self._printer.names[leaf]
        return texts

    def _element(self, phase: Phase, roots: list[Expr]) -> list[str]:
        """The same of values that are hoisted."""
        definitions, hoisted = share_products([self._without_held(r) for r in roots])
        nodes = evaluated(*definitions.values(), *hoisted)
        self._name_leaves(nodes)
        late = self._name_conditions(nodes, definitions.keys())
        uses = _uses_of((n for n in nodes if not isinstance(n, Reduce)), hoisted)
        shared = {product: leaf for leaf, product in definitions.items()}
        temporary: list[Expr] = list(definitions)
        for n in nodes:
            if n in definitions:
                continue
            if n in self._held and n not in self._printer.names:
                self._hold(n, phase)
                continue
            if n in late:
                self._printer.names[n] = f"({self._printer.text(n)})"
                temporary.append(n)
            if self.rates.atomic(n) or is_condition(n):
                self._note_load(n, phase)
                if n in shared:  # a value of the row has this product already
                    self._printer.names[shared[n]] = self._printer.text(n)
                continue
            binding = self._bindings.get(self._hoisted_bindings.get(n, n))
            if n in shared or uses[n] > 1 or (binding is not None and n not in hoisted):
                name = self._names.claim(binding.name) if binding else self._take(n, "value")
                phase.statements.append(f"const float {name} = {self._printer.text(n)};{self.comment(n)}")
                self._printer.names[n] = self._printer.names[shared.get(n, n)] = name
                temporary.append(n)
        texts = [self._printer.text(h) for h in hoisted]
        for n in temporary:  # names of one pass are unknown to the next
            del self._printer.names[n]
        return texts

    def _name_leaves(self, nodes: Iterable[Expr]) -> None:
        """Compute the values of the row that elements are made of."""
        for n in nodes:
            if isinstance(n, Scalar) and n in self.rates.leaves and n not in self._printer.names:
                self._printer.names[n] = self.row_value(self.rates.leaves[n])

    def _name_conditions(self, nodes: Iterable[Expr], shared: Set[Expr]) -> set[Expr]:
        """Name the conditions that a row has as a whole, but for those that need what elements share: which
        these are."""
        of_row = [n for n in nodes if self.rates.per_row(n) and not self.rates.atomic(n)]
        conditions = list(filter(is_condition, of_row))
        late = {n for n in conditions if not shared.isdisjoint(walk(n))}
        for n in conditions:
            if n not in late:
                self._printer.names[n] = f"({self._printer.text(n)})"
        return late

    def _note_load(self, node: Expr, phase: Phase) -> None:
        if isinstance(node, Load) and node.tensor not in phase.loads and not self.rates.per_row(node):
            phase.loads.append(node.tensor)

    def finish(
        self,
        results: Iterable[tuple[Expr, Access]],
        columns: Iterable[ColumnText] = (),
        taken: Callable[[ColumnText, str], str] = ColumnText.element,
    ) -> None:
        """The statements of the last pass: those that give results their elements, and those by which
        accumulators take theirs in, as `taken` writes them."""
        final, stored, columns = self.phases[-1], list(results), list(columns)
        values = self.element(final, [*(root for root, _ in stored), *(c.column.value for c in columns)])
        for (root, access), value in zip(stored, values, strict=False):
            final.statements.append(f"{access.value}_out[i] = {value};{self.comment(root)}")
        final.statements += map(taken, columns, values[len(stored) :])

    @property
    def exchanged(self) -> int:
        """The most values of a row in one exchange."""
        return max(3 if p.moments else 2 if p.exponentials else len(p.sums) for p in self.phases)

    def _without_held(self, root: Expr) -> Expr:
        """The value with what is kept from an earlier pass as leaves: what that was made of is not needed."""
        names = self._printer.names
        leaves: dict[Expr, Expr] = {n: leaf_of(n) for n in self._held if n in names}
        names.update({leaf: names[n] for n, leaf in leaves.items()})
        return _with_leaves(root, leaves)

    def _hold(self, node: Expr, phase: Phase) -> None:
        """Compute a value that costs much once, and keep it for the passes to come."""
        name = self._take(node, "held")
        if isinstance(node, Round):
            at, kept = f"{name}[i]", Rounded(name, self._printer.c_type(node.to))
            self.rounded[leaf_of(node).tensor] = kept
            phase.packed.append(kept)
        else:
            at = f"{name}[item * VEC + i]"
            self.held.append(name)
        phase.statements.append(f"{at} = {self._printer.text(node)};{self.comment(node)}")
        self._printer.names[node] = at

    def _kept(self, found: Exponentials) -> dict[str, str]:
        """The array of a level's exponentials, for a later pass that uses them again, and their scale."""
        node = self.rates.hoist(found.total.arg)
        if node not in self._held or found.shift is not found.top:
            return {"kept": ""}
        kept = self._take(node, "held")
        scale = self._names.take("scale")
        self._printer.names[node] = f"({kept}[item * VEC + i] * {scale})"
        self.held.append(kept)
        return {"kept": kept, "scale": scale}

    # ------------------------------------------------------------------------------------------------ levels

    def _name_sums(self) -> None:
        for level in self.levels:
            for node in level.sums:
                name = self._take(node, node.op)
                self._printer.names[node] = self.called(node, name)

    def _level(self, k: int, level: Level) -> None:
        phase = self.phases[k]
        if level.moments is not None:
            m = level.moments
            binding = self._bindings.get(m.mean)
            mean = self._names.claim(binding.name if binding else "mean")
            (value,) = self.element(phase, [m.value])
            self._printer.names[m.mean] = self.called(m.mean, mean)
            parts = ((m.centred, "centred"), (m.squares, "squares"))
            sums = [(self._printer.names[s], part) for s, part in parts if s]
            phase.moments = {"value": value, "mean": mean, "comment": self.comment(m.mean), "sums": sums}
            return
        if level.exponentials is not None:
            e = level.exponentials
            (value,) = self.element(phase, [e.value])
            top, total = self._printer.names[e.top], self._printer.names[e.total]
            phase.exponentials = {"value": value, "top": top, "total": total, **self._kept(e)}
            if e.shift is not e.top:
                self._printer.names[e.total] = f"about_finite({total}, {top})"
            return
        self.sums.add(phase, level.sums, last=k + 1 == len(self.levels))
        for node in filter(is_missed, level.sums):
            self._printer.names[node] = f"if_finite({self._printer.names[node]})"


def _uses_of(nodes: Iterable[Expr], roots: Iterable[Expr]) -> Counter[Expr]:
    """How often each value stands in one of these nodes, or is a root."""
    uses = Counter(child for node in nodes for child in set(children(node)))
    uses.update(roots)
    return uses


def _with_leaves(root: Expr, leaves: Mapping[Expr, Expr]) -> Expr:
    """The value with leaves in place of others; what was summed up keeps its name."""
    return rewrite(root, {**leaves, **{n: n for n in walk(root) if isinstance(n, Reduce)}})
