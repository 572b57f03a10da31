"""Programs as straight-line Python text that calls PyTorch's operators.

A value has a dimension for each axis of the program, of length 1 where it does not vary. All values are
float64 where a tensor of the call is, else float32, as in kernels. What depends on attrs and lengths alone is
a Python number.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from normgen.dtypes import DTYPES
from normgen.ir.nodes import Add, Axes, Call, Expr, Load, Mul, Reduce, Round, Select
from normgen.ir.program import Program, Tensor
from normgen.torch.printing.lines import LOGIC, SIGNS, Lines, Value, exact, raised, times
from normgen.torch.printing.plan import Form, rest_of

# The function of `torch` that each primitive is.
FUNCTIONS = {
    "exp": "exp", "log": "log", "log1p": "log1p", "tanh": "tanh", "erf": "erf", "sigmoid": "sigmoid",
    "abs": "abs", "max": "maximum", "min": "minimum", "pow": "pow", "minus": "sub",
}  # fmt: skip
_FOLDS = {"sum": "sum", "max": "amax", "min": "amin"}


class Text(NamedTuple):
    """The text of a step. `buffers`: the number of tensors that it computes in; `wide`: for each axis whether
    these vary over it. `stored`: for each result the buffer that it is, None for others."""

    text: str
    buffers: int
    wide: tuple[bool, ...]
    stored: tuple[int | None, ...]


def text_of(program: Program, form: Form) -> Text:
    """`def step(operands, attrs, lengths, buffers)`, which returns results, then new states, in the order of
    the program: tensors of all axes of each, in their order, then of the others, of length 1."""
    return _Printer(program, form).text()


class _Product(NamedTuple):
    """A product: a number as numerator and denominator, and values to multiply with or to divide by."""

    number: str
    below: str
    factors: list[tuple[Value, bool]]  # (value, whether it divides), widest first


class _Printer(Lines):
    """A text, value by value."""

    def text(self) -> Text:
        names = [f"o{place}" for place in range(len(self.form.given))]
        names += [f"a{place}" for place in range(len(self.scalars))]
        names += [f"n{place}" for place in range(len(self.axes))]
        for node in self.nodes:
            if node in self.within or node in self.numbers:
                continue
            used = self._used(node)
            self.read = {self.values[each].text for each in used}
            self.values[node] = made = self._tensor(node)
            self._leave(used, made)
        stored = []
        for expr, tensor in self.roots:
            node = self.real(expr)
            self.uses[node] -= 1
            stored.append(self._stored(self.value(node), tensor, last=not self.uses[node]))
        self.lines.append(f"return [{', '.join(stored)}]")
        buffers = [f"b{place}" for place in range(self.buffers)]
        names += buffers
        text = f"def step({', '.join(names)}):\n    " + "\n    ".join(self.lines) + "\n"
        wide = tuple(axis in self.wide for axis in self.axes)
        return Text(
            text, self.buffers, wide, tuple(buffers.index(e) if e in buffers else None for e in stored)
        )

    def _tensor(self, node: Expr) -> Value:
        """Compute a node."""
        match node:
            case Load(tensor=name):
                return self._loaded(self.operands[name])
            case Add():
                return self._sum(node)
            case Mul():
                return self._multiplied(self._product(node))
            case Call(op=op, args=args):
                return self._called(op, [self.value(arg) for arg in args], args)
            case Round(arg=arg):
                return self._rounded(self.value(arg), self._type(node))
            case Reduce(op=op, over=over, window=(), arg=arg):
                return self._reduced(op, over, self.value(arg))
            case Reduce(window=window, arg=arg):
                made = self.value(arg)
                for axis, low, high in window:
                    made = self._neighbours(made, axis, low, high)
                return made
            case Select(condition=condition, then=then, otherwise=otherwise):
                return self._chosen(condition, then, otherwise)
            case _:
                raise AssertionError(type(node))

    def _loaded(self, tensor: Tensor) -> Value:
        text = f"o{self.form.given.index(tensor.name)}"
        order, kept = tensor.order, [axis for axis in self.axes if axis in tensor.axes]
        if list(order) != kept:
            lengths = ", ".join(f"n{self.axes.index(axis)}" for axis in order)
            text += f".reshape({lengths}).permute({', '.join(str(order.index(axis)) for axis in kept)})"
        text += f".reshape({self._shape(tensor.axes)})"
        if self.dtypes[tensor.name] == self.form.real:
            return self._line(text, tensor.axes, own=False)
        room = self._room(tensor.axes)
        if room is None:
            return self._line(f"{text}.to({self._dtype(self.form.real)})", tensor.axes)
        self.lines.append(f"{room}.copy_({text})")
        return Value(room, tensor.axes, own=True)

    def _dtype(self, name: str) -> str:
        return f"torch.{DTYPES[name].numpy_name}"

    def _sum(self, node: Add) -> Value:
        terms = [(self.real(term), coefficient) for term, coefficient in node.terms]
        numbers = [times(self.value(t).text, c) for t, c in terms if t in self.numbers]
        others = [(t, c) for t, c in terms if t not in self.numbers]
        first = max(others, key=lambda each: self._fitness(*each))
        others.remove(first)
        made = self._term(*first)
        for term, coefficient in others:
            made = self._added(made, term, coefficient)
        if numbers:
            made = self._elementwise("add", made, Value(" + ".join(numbers), None), over=[made])
        return made

    def _fitness(self, term: Expr, coefficient: Fraction) -> tuple[int, bool, bool]:
        """By what a sum chooses the term that it begins with, so that the most can be added in place."""
        return len(self._axes(term)), coefficient == 1, term in self.within or self._last(term)

    def _axes(self, node: Expr) -> Axes:
        if node in self.within:
            return frozenset[str]().union(*(self._axes(each) for each in self._used(node)))
        return self.values[node].axes or frozenset()

    def _term(self, term: Expr, coefficient: Fraction) -> Value:
        """The first term of a sum, which others may be added to in place if it is its own."""
        if term in self.within:
            assert isinstance(term, Mul)
            return self._multiplied(self._product(term, coefficient))
        value = self.values[term]
        mine = value._replace(own=value.own and self._last(term))
        if coefficient == 1:
            return mine
        return self._elementwise("mul", value, Value(f"{float(coefficient)!r}", None), over=[mine])

    def _added(self, total: Value, term: Expr, coefficient: Fraction) -> Value:
        if term not in self.within:
            options = {} if coefficient == 1 else {"alpha": exact(coefficient)}
            return self._elementwise("add", total, self.values[term], over=[total], **options)
        assert isinstance(term, Mul)
        product = self._product(term, coefficient)
        factors = [value for value, divides in product.factors if not divides]
        if len(factors) == 2 == len(product.factors):
            options = {} if product.number == product.below else {"value": _over(product)}
            return self._elementwise("addcmul", total, *factors, over=[total], **options)
        if len(factors) == 1 == len(product.factors):
            return self._elementwise("add", total, *factors, over=[total], alpha=_over(product))
        made = self._multiplied(product)
        joined = self._elementwise("add", total, made, over=[total, made])
        self._drop(made, joined)
        return joined

    def _drop(self, value: Value, made: Value) -> None:
        """Let others have the memory of a value that is no node, unless `made` lies there."""
        if value.own and value.text not in (made.text, *self.read) and value.axes is not None:
            self.free.setdefault(value.axes, []).append(value.text)

    def _product(self, node: Mul, factor: Fraction = Fraction(1)) -> _Product:
        """The factors of a product: narrow ones are multiplied with each other first."""
        above, below, factors = [exact(node.coefficient * factor)], [], []
        part, own = self.parts.get(node), node.factors
        if isinstance(part, Mul):
            own = ((part, Fraction(1)), *rest_of(node, part))
        for operand, exponent in own:
            base = self.real(operand)
            if base in self.numbers:
                if exponent < 0:
                    below.append(raised(self.value(base).text, -exponent))
                else:
                    above.append(raised(self.value(base).text, exponent))
            else:
                divides = exponent < 0 and exponent.denominator == 1
                power = -exponent if divides else exponent
                mine = self.values[base]
                mine = mine._replace(own=mine.own and self._last(base) and power == 1)
                factors.append((self._power(mine, power), divides))
        above = [each for each in above if each != "1.0"] or above[:1]
        factors = self._combined(sorted(factors, key=lambda each: each[0].width))
        return _Product(" * ".join(above), " * ".join(below) or "1.0", factors)

    def _combined(self, factors: list[tuple[Value, bool]]) -> list[tuple[Value, bool]]:
        """Factors, of which those that are narrower than the product are combined where one of two varies
        over all that the other does; widest first."""
        axes = frozenset[str]().union(*(value.axes or () for value, _ in factors))
        found: list[tuple[Value, bool]] = []
        for value, divides in factors:
            assert value.axes is not None
            place = next(
                (
                    n
                    for n, (other, inverse) in enumerate(found)
                    if value.axes != axes and (other.axes or frozenset()) <= value.axes and not divides
                ),
                None,
            )
            if place is None:
                found.append((value, divides))
                continue
            other, inverse = found.pop(place)
            made = self._elementwise("div" if inverse else "mul", value, other, over=[value, other])
            self._drop(value, made)
            self._drop(other, made)
            found.append((made, False))
        return sorted(found, key=lambda each: (-each[0].width, each[1], not each[0].own))

    def _multiplied(self, product: _Product) -> Value:
        """The value of a product."""
        factors = list(product.factors)
        if all(divides for _, divides in factors):
            first, _ = factors[0]
            factors[0] = self._elementwise("reciprocal", first, over=[first]), False
        if _over(product) != "1.0":  # the number goes where it takes least
            place = max(n for n, (_, divides) in enumerate(factors) if not divides)
            narrow, _ = factors[place]
            divided = product.number == "1.0"
            number = Value(product.below if divided else _over(product), None)
            factors[place] = (
                self._elementwise("div" if divided else "mul", narrow, number, over=[narrow]),
                False,
            )
        factors.sort(key=lambda each: each[1])
        made, _ = factors[0]
        for value, divides in factors[1:]:
            both = self._elementwise("div" if divides else "mul", made, value, over=[made, value])
            self._drop(made, both)
            self._drop(value, both)
            made = both
        return made

    def _power(self, base: Value, exponent: Fraction) -> Value:
        """base^exponent; NaN where a fractional power has a negative base."""
        if exponent == 1:
            return base
        simple = {Fraction(2): "square", Fraction(1, 2): "sqrt", Fraction(-1, 2): "rsqrt"}
        if exponent in simple:
            return self._elementwise(simple[exponent], base)
        if exponent.denominator == 2:
            root = self._elementwise("sqrt" if exponent > 0 else "rsqrt", base)
            whole = Value(f"{float(exponent.__trunc__())!r}", None)
            rest = self._elementwise("pow", base, whole)
            return self._elementwise("mul", root, rest, over=[root])
        made = self._elementwise("pow", base, Value(exact(exponent), None))
        if exponent.denominator == 1:
            return made
        return self._line(f"torch.where({base.text} < 0, float('nan'), {made.text})", made.axes)

    def _called(self, op: str, given: list[Value], nodes: Sequence[Expr]) -> Value:
        axes = frozenset[str]().union(*(each.axes or () for each in given))
        texts = [each.text for each in given]
        if op in SIGNS:
            return self._line(f"{texts[0]} {SIGNS[op]} {texts[1]}", axes, own=False)
        if op in LOGIC:
            sign = LOGIC[op][0]
            text = sign + texts[0] if len(texts) == 1 else f" {sign} ".join(texts)
            return self._line(text, axes, own=False)
        mine = [
            each._replace(own=each.own and self._last(self.real(node)))
            for each, node in zip(given, nodes, strict=True)
            if each.axes is not None
        ]
        if op in ("max", "min") and None in (given[0].axes, given[1].axes):
            (tensor,), (limit,) = ([e for e in given if (e.axes is None) is kind] for kind in (False, True))
            return self._elementwise(
                "clamp", tensor, over=mine, **{"min" if op == "max" else "max": limit.text}
            )
        if op == "minus" and given[0].axes is None:
            return self._line(f"{texts[0]} - {texts[1]}", axes)
        return self._elementwise(FUNCTIONS[op], *given, over=mine)

    def _rounded(self, value: Value, to: str) -> Value:
        return self._line(f"{self._narrowed(value.text, to)}.to({self._dtype(self.form.real)})", value.axes)

    def _narrowed(self, text: str, to: str) -> str:
        """A value as an element type, of which some saturate."""
        limit = DTYPES[to].largest
        clamped = f"{text}.clamp(-{limit!r}, {limit!r})" if DTYPES[to].saturates else text
        return f"{clamped}.to({self._dtype(to)})"

    def _reduced(self, op: str, over: Axes, value: Value) -> Value:
        assert value.axes is not None
        there = over & value.axes
        made = value
        if there:
            text = f"torch.{_FOLDS[op]}({value.text}, {self._dims(there)}, keepdim=True)"
            made = self._line(text, value.axes - there)
        missing = self._lengths(over - value.axes) if op == "sum" else []
        if missing:
            made = self._elementwise("mul", made, Value(" * ".join(missing), None))
        return made if made is not value else self._line(value.text, value.axes, own=False)

    def _neighbours(self, value: Value, axis: str, low: int, high: int) -> Value:
        """The sum over i + low .. i + high along an axis; what lies outside adds nothing."""
        place, axes = self.axes.index(axis), (value.axes or frozenset()) | {axis}
        text = self._spread(value, axes)
        return self._line(f"neighbours({text}, {place}, n{place}, {low}, {high})", axes)

    def _chosen(self, condition: Expr, then: Expr, otherwise: Expr) -> Value:
        test, *sides = (self.value(each) for each in (condition, then, otherwise))
        axes = frozenset[str]().union(*(each.axes or () for each in (test, *sides)))
        if test.axes is None:
            for each in (then, otherwise):  # what is chosen is one of these, and nobody else may have that
                self.uses[self.real(each)] += 1
            texts = [self._spread(each, axes) for each in sides]
            return self._line(f"{texts[0]} if {test.text} else {texts[1]}", axes, own=False)
        texts = [each.text for each in sides]
        if sides[0].axes is None is sides[1].axes:
            texts[0] = f"{test.text}.new_full((), {texts[0]}, dtype={self._dtype(self.form.real)})"
        return self._line(f"torch.where({test.text}, {', '.join(texts)})", axes)

    def _spread(self, value: Value, axes: Axes) -> str:
        if value.axes == axes:
            return value.text
        if value.axes is None:
            dtype = self._dtype(self.form.real)
            return f"torch.full(({self._shape(axes)},), {value.text}, dtype={dtype}, device=o0.device)"
        return f"{value.text}.expand({self._shape(axes)})"

    def _stored(self, value: Value, tensor: Tensor, last: bool) -> str:
        """A value as a tensor has it. `last`: whether no other result is the same."""
        dtype = dict(self.form.stored)[tensor.name]
        text = self._spread(value, value.axes or frozenset())
        if dtype != self.form.real:
            text = self._narrowed(text, dtype)
        elif value.axes is not None and not (value.own and last):
            text += ".clone()"
        if (value.axes or frozenset()) != tensor.axes:
            text += f".expand({self._shape(tensor.axes)})"
        order = [*tensor.order, *(axis for axis in self.axes if axis not in tensor.axes)]
        if order != list(self.axes):
            text += f".permute({', '.join(str(self.axes.index(axis)) for axis in order)})"
        return text


def _over(product: _Product) -> str:
    return product.number if product.below == "1.0" else f"{product.number} / ({product.below})"
