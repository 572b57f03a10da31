"""The backward of a definition, as another program.

It reads cotangents d<output> and only what it needs beside them, and writes gradients d<name>. Kept values
are read, never computed again; what reductions it still has to repeat, and which gradients are zero whatever
the data, stand in its notes. Common factors of the sums it made are pulled out, which keeps powers low:
rstd * (w * dy - ...).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations

from normgen.ir.adjoint import adjoint
from normgen.ir.centre import as_mean
from normgen.ir.expr import ZERO, add, factors, load, mul, power, rebuild, reductions, round_to, select, walk
from normgen.ir.facts import is_finite
from normgen.ir.limit import limited
from normgen.ir.moved import refuse_moved
from normgen.ir.nodes import Add, Expr, Load, Round, Select, children, order
from normgen.ir.program import Definition, Program, Result, Tensor, dims_of, made_of_cotangents, value_of
from normgen.ir.reads import operands_read
from normgen.ir.recover import transform, use_kept, without_stops
from normgen.ir.show import show
from normgen.ir.work import spend


def backward(definition: Definition) -> Program:
    """The derived backward program. `SpecError` where that takes too many steps (see `limit`), or reads what
    is gone when it runs (see `moved`).
    """
    with limited(definition, "the backward"):
        derived = _backward(definition)
    refuse_moved(definition, derived.results)
    return derived


def _backward(definition: Definition) -> Program:
    program = definition.to_differentiate
    raw = gradients(definition, {name: f"d{name}" for name in definition.of})

    kept = kept_values(program)
    values = [value_of(program, name) for name in definition.of]
    forward = [*values, *(b.expr for b in program.bindings), *(r.expr for r in program.results)]
    lets: dict[Expr, Expr] = {
        load(b.name, b.expr.axes): b.expr for b in program.bindings if b.name in definition.wrt
    }
    plain = without_stops([*raw.values(), *forward], lets)
    sources = [plain[e] for e in raw.values()]
    read_back = [(name, plain[d]) for name, d in kept]
    recovered = use_kept(sources, read_back, [plain[e] for e in walk(*forward)], moved=definition.moved)
    # Without its stops a node may fold into others, and then stands nowhere.
    image = {node: recovered[plain[node]] for node in walk(*forward)}
    tidy = factored([recovered[e] for e in sources], set(image.values()))

    read = [tidy[recovered[e]] for e in sources]
    stored = as_stored(read, [r.tensor for r in program.results if r.kept])
    exprs = [stored[e] for e in read]
    results = tuple(
        Result(gradient_tensor(definition, name, f"d{name}", f"d{definition.of[0]}"), e, kept=False)
        for name, e in zip(raw, exprs, strict=True)
    )
    means = ((name, as_mean(e)) for name, e in read_back)
    return replace(
        _with_lets_of(exprs, program, image),
        operands=operands_read(definition, exprs),
        results=results,
        updates=(),
        notes=(*_repeated(program, image, exprs), *_zeros(results)),
        saved_means=tuple((name, mean.of(recovered), mean.over) for name, mean in means if mean),
    )


def _with_lets_of(roots: Iterable[Expr], program: Program, image: Mapping[Expr, Expr]) -> Program:
    """The program with those lets alone that the backward is made of."""
    present, lets = set(walk(*roots)), (replace(b, expr=image[b.expr]) for b in program.bindings)
    return replace(program, bindings=tuple(b for b in lets if b.expr in present and children(b.expr)))


def gradients(definition: Definition, cotangents: Mapping[str, str]) -> dict[str, Expr]:
    """What arrives at everything of `wrt`, as reverse mode leaves it, with the stops and loads of opened lets
    that the program has. `cotangents`: the tensor that holds the cotangent of each value of `of`."""
    assert definition.of, "nothing is differentiated"
    program = definition.to_differentiate
    targets = {name: value_of(program, name) for name in definition.wrt}
    values = {name: value_of(program, name) for name in definition.of}
    roots = [(e, load(cotangents[name], e.axes)) for name, e in values.items()]
    found = adjoint(roots, targets.values(), made_of_cotangents(program.operands, *values.values()))
    return {name: found[target] for name, target in targets.items()}


def kept_values(program: Program) -> list[tuple[str, Expr]]:
    """What the forward leaves for the backward; a copy of an input is no reason to read another array."""
    states = {t.name for t in program.operands if t.role == "state"}
    return [
        (r.tensor.name, r.expr)
        for r in program.results
        if r.kept and not (isinstance(r.expr, Load) and r.expr.tensor not in states)
    ]


def as_stored(
    roots: Collection[Expr], results: Iterable[Tensor], also: Collection[Expr] = ()
) -> dict[Expr, Expr]:
    """Every node below `roots` and `also`, without rounding what is read of results to the type that it has.
    Other roundings to the type of a tensor that no root reads name one that some root reads and has the same.
    """
    stored = {t.name: t.dtype or f"like {t.like}" for t in results}
    read = {n.tensor for n in walk(*roots) if isinstance(n, Load)}
    named = {to: f"like {name}" for name, to in stored.items() if name in read}

    def replace_round(node: Expr, new: tuple[Expr, ...]) -> Expr | None:
        if not isinstance(node, Round):
            return None
        (arg,) = new
        if isinstance(arg, Load) and stored.get(arg.tensor) == node.to:
            return arg
        unread = node.to.startswith("like ") and node.to.removeprefix("like ") not in read
        return round_to(arg, named.get(node.to, node.to)) if unread else None

    return transform([*roots, *also], replace_round)


def gradient_tensor(
    definition: Definition, name: str, gradient: str, cotangent: str, role: str = "gradient"
) -> Tensor:
    """The tensor `gradient`, shaped and typed like its operand; that of a let is typed like a cotangent."""
    dims = dims_of(definition.program, name)
    dtype = {t.name: t.dtype for t in definition.program.operands}
    like = None if dtype.get(name) else name if name in dtype else cotangent
    return Tensor(gradient, role, dims, dtype.get(name), like, None, "", None)


def _repeated(program: Program, image: Mapping[Expr, Expr], exprs: Sequence[Expr]) -> list[str]:
    known = {image[r] for r in reductions(*(b.expr for b in program.bindings)) if r in image}
    holders: dict[Expr, str] = {}
    seen: set[Expr] = set()
    for b in program.bindings:
        for node in walk(b.expr, seen=seen):
            if node in image:
                holders.setdefault(image[node], b.name)
    notes = []
    for again in (r for r in reductions(*exprs) if r in known):
        name = holders[again]
        notes.append(
            f"the backward computes {show(again)} again (see `{name}`); a `save` of it would spare that"
        )
    return notes


def _zeros(results: Iterable[Result]) -> list[str]:
    return [
        f"`{r.tensor.name}` is zero: nothing that is differentiated depends on `{r.tensor.name[1:]}`"
        for r in results
        if r.expr is ZERO
    ]


# --------------------------------------------------------------------------- common factors


MOST_COMPARED = 64  # terms of a sum, each with each; of more only what all of them share is pulled out


def factored(roots: Iterable[Expr], written: Collection[Expr]) -> dict[Expr, Expr]:
    """Common factors pulled out of every sum that is not the user's own."""

    def visit(node: Expr, new: tuple[Expr, ...]) -> Expr | None:
        if not isinstance(node, Add) or node in written:
            return None
        total = rebuild(node, new, real=True)
        return _pull_common(total) if isinstance(total, Add) else total

    return transform(roots, visit)


def _pull_common(total: Add) -> Expr:
    """What all terms share before the sum; failing that, what the likest of them share before theirs."""
    merged = _merged(total)
    if merged is not total:
        return _pulled(merged)
    content = abs(total.terms[0][1])
    if content != 1 and all(abs(c) == content for _, c in total.terms):
        rest = add(*(mul(c / content, t) for t, c in total.terms), real=True)
        return mul(content, _pulled(rest), real=True)
    pieces = [_factors(term) for term, _ in total.terms]
    masked = [_is_masked(term) for term, _ in total.terms]
    if everywhere := _shared_by_all(pieces, all(masked)):
        common = [power(base, min((piece[base] for piece in pieces), key=abs)) for base in everywhere]
        inverse = [power(f, -1) for f in common]
        rest = add(*(mul(c, _scaled(t, inverse)) for t, c in total.terms), real=True)
        return mul(*common, _pulled(rest), real=True)
    inside = _likest(pieces)
    if len(inside) < 2 or all(masked[i] for i in inside):
        return total
    group = add(*(mul(c, t) for i, (t, c) in enumerate(total.terms) if i in inside), real=True)
    alone = [mul(c, t) for i, (t, c) in enumerate(total.terms) if i not in inside]
    return _pulled(add(*alone, _pulled(group), real=True))


def _merged(total: Add) -> Expr:
    """The sum with what one condition masks behind one mask."""
    behind: dict[tuple[Expr, bool], list[Expr]] = {}
    rest: list[Expr] = []
    for term, c in total.terms:
        if isinstance(term, Select) and _is_masked(term):
            branch = term.otherwise if term.then is ZERO else term.then
            behind.setdefault((term.condition, term.then is ZERO), []).append(mul(c, branch))
        else:
            rest.append(mul(c, term))
    if all(len(parts) == 1 for parts in behind.values()):
        return total
    for (condition, turned), parts in behind.items():
        branch = parts[0] if len(parts) == 1 else _pulled(add(*parts, real=True))
        rest.append(select(condition, ZERO, branch) if turned else select(condition, branch, ZERO))
    return add(*rest, real=True)


def _is_masked(term: Expr) -> bool:
    return isinstance(term, Select) and ZERO in (term.then, term.otherwise)


def _pulled(value: Expr) -> Expr:
    return _pull_common(value) if isinstance(value, Add) else value


def _likest(pieces: Sequence[Mapping[Expr, Fraction]]) -> frozenset[int]:
    """The terms worth a bracket of their own: those that share several factors which vary, else those that
    share one of which some term has a higher power.
    """
    if len(pieces) > MOST_COMPARED:
        return frozenset()
    spend(len(pieces) ** 2 // 2)
    signed = [{(base, e > 0) for base, e in piece.items() if base.axes} for piece in pieces]
    best: set[tuple[Expr, bool]] = set()
    for one, other in combinations(signed, 2):
        shared = one & other
        best = shared if len(shared) > max(1, len(best)) else best
    if best:
        return frozenset(i for i, piece in enumerate(pieces) if all(base in piece for base, _ in best))
    for base in sorted({b for piece in pieces for b, e in piece.items() if abs(e) >= 2}, key=order):
        inside = frozenset(i for i, piece in enumerate(pieces) if base in piece)
        if len(inside) > 1 and _shared(base, [pieces[i] for i in inside]):
            return inside
    return frozenset()


def _shared_by_all(pieces: Sequence[Mapping[Expr, Fraction]], masked: bool) -> list[Expr]:
    """What all terms share. Of masked terms what may be infinite stays behind their masks."""
    found = [base for base in pieces[0] if _shared(base, pieces)]
    return [base for base in found if not masked or is_finite(power(base, pieces[0][base]))]


def _shared(base: Expr, pieces: Sequence[Mapping[Expr, Fraction]]) -> bool:
    exponents = [piece.get(base, Fraction(0)) for piece in pieces]
    return all(e > 0 for e in exponents) or all(e < 0 for e in exponents)


def _factors(term: Expr) -> dict[Expr, Fraction]:
    """The factors of a term; of a select between something and 0, those of the something."""
    if isinstance(term, Select) and _is_masked(term):
        return _factors(term.otherwise if term.then is ZERO else term.then)
    return dict(factors(term)[1])


def _scaled(term: Expr, by: Sequence[Expr]) -> Expr:
    if isinstance(term, Select) and _is_masked(term):
        return select(term.condition, _scaled(term.then, by), _scaled(term.otherwise, by))
    return mul(term, *by, real=True)
