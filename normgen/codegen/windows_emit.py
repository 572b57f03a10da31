"""Windows plan -> CUDA text, one for each form.

- march: an image is walked with the sums of several steps under way; every element is read once.
- span: windows along the innermost axis; a thread reads its elements and those around them.
- direct: every neighbour of every element is looked at. Always there; the others ask for operands of certain
  axes and, at a call, for images in one piece.
"""

from __future__ import annotations

from typing import Any

from normgen.codegen.plan import Operand
from normgen.codegen.printer import Printer
from normgen.codegen.render import environment
from normgen.codegen.text import Access, digits_of
from normgen.codegen.tidy import tidy
from normgen.codegen.windows import Order, WindowsPlan
from normgen.codegen.windows_text import WindowsText, unnamed
from normgen.diagnostics import Source
from normgen.ir.expr import Expr, Extent, Load, Reduce, Scalar, children, walk
from normgen.ir.show import show
from normgen.runtime.records import FormRecord, Parameter, WindowsRecord, axis_name

Context = dict[str, Any]
# What a form counts in, for the kernel's parameters.
_COUNTS = {
    "direct": ("elements",),
    "span": ("images", "lanes", "size"),
    "march": ("images", "lanes", "ranges", "steps", "length", "size"),
}


def emit_windows(
    plan: WindowsPlan, source: Source, accumulated: frozenset[str], formulas: tuple[str, ...] = ()
) -> WindowsRecord:
    """The record of a kernel with the text of each form that its plan admits."""
    text = WindowsText(plan, source, accumulated, formulas)
    forms = [_Direct(text).form()]
    if plan.marches:
        forms.insert(0, (_March if len(plan.image) > 1 else _Span)(text).form())
    return WindowsRecord(
        name=plan.name,
        axes=plan.axes,
        image=plan.image,
        windowed=plan.windowed,
        reaches=plan.reaches if plan.image else (),
        sums=tuple(map(len, plan.levels)),
        reads=tuple(text.read(o, "").record() for o in plan.operands),
        writes=tuple(text.result(r).record() for r in plan.results),
        forms=tuple(forms),
    )


class _Form:
    """What the forms have in common."""

    name: str

    def __init__(self, text: WindowsText) -> None:
        self.text, self.plan = text, text.plan

    def context(self) -> Context:
        raise NotImplementedError

    def form(self) -> FormRecord:
        entry = f"{self.plan.name}_{self.name}"
        parameters = self._parameters()
        template = environment().get_template(f"windows_{self.name}.cu.jinja")
        kernel = self.context() | {"formulas": self.text.formulas, "flags": self.text.flags}
        declared = [_declare(self.text, p) for p in parameters]
        source = tidy(template.render(kernel=kernel, entry=entry, parameters=declared))
        return FormRecord(self.name, entry, parameters, source)

    # -------------------------------------------------------------------------------------------- parameters

    def strides(self, operand: Operand) -> Order:
        """The axes along which an operand is addressed by a stride."""
        raise NotImplementedError

    def sizes(self) -> set[str]:
        """The axes whose lengths the text uses."""
        raise NotImplementedError

    def _parameters(self) -> tuple[Parameter, ...]:
        plan = self.plan
        used = set(walk(*(r.expr for r in plan.results)))
        tensors = [*plan.operands, *(self.text.result(r).operand for r in plan.results)]
        lengths = self.sizes() | {n.axis for n in used if isinstance(n, Extent)}
        scalars = {n.name for n in used if isinstance(n, Scalar)}
        return (
            *(Parameter("pointer", o.tensor.name) for o in tensors),
            *(Parameter("stride", o.tensor.name, axis) for o in tensors for axis in self.strides(o)),
            *(Parameter("size", axis=a) for a in plan.axes if a in lengths),
            *(Parameter("scalar", a) for a in plan.scalars if a in scalars),
            *(Parameter("count", name) for name in _COUNTS[self.name]),
        )

    # -------------------------------------------------------------------------------------------- results

    def final(self, printer: Printer) -> Context:
        """The statements that compute the results, and their stores."""
        statements, values = self.text.statements([r.expr for r in self.plan.results], printer)
        stores = []
        for result, value in zip(self.plan.results, values, strict=True):
            access = self.text.result(result)
            name = f"{access.identifier}_out"
            statements.append(f"{name}[i] = {value};{self.text.comment(result.expr)}")
            stores.append(
                {
                    "value": name,
                    "type": access.type,
                    "address": self.address(access),
                    "guard": f"if constexpr ({self.text.wants[result.tensor.name]})",
                    "accumulates": result.tensor.name in self.text.accumulated,
                }
            )
        return {"statements": statements, "stores": stores}

    def address(self, access: Access) -> str:
        """Where the first of a thread's elements of an operand lies."""
        raise NotImplementedError


# ------------------------------------------------------------------------------------------------ direct


class _Direct(_Form):
    name = "direct"

    def strides(self, operand: Operand) -> Order:
        axes = tuple(a for a in self.plan.axes if a in operand.tensor.axes)
        return axes[:-1] if self._adjacent(operand) else axes

    def sizes(self) -> set[str]:
        return {*self.plan.axes[1:], *self.plan.windowed}

    def _adjacent(self, operand: Operand) -> bool:
        """Whether the elements of a thread lie next to each other."""
        return operand.tensor.order[-1:] == self.plan.axes[-1:]

    def address(self, access: Access) -> str:
        terms = [
            f" + at_{axis_name(a)} * {self.text.stride(access.operand.tensor.name, a)}"
            for a in self.strides(access.operand)
        ]
        last = f" + at_{axis_name(self.plan.axes[-1])}" if self._adjacent(access.operand) else ""
        return access.pointer + "".join(terms) + last

    def context(self) -> Context:
        inner = self.plan.axes[-1]
        values = {
            o.tensor.name: self.text.ids[o.tensor.name] + ("[i]" if inner in o.tensor.axes else "")
            for o in self.plan.operands
        }
        printer = self.text.printer(values, "[i]")
        roots = [r.expr for r in self.plan.results]
        return {
            "digits": digits_of(self.plan.axes, "element", always=True),
            "windows": [self._window(s, printer) for level in self.plan.levels for s in level],
            "final": self._part(roots, printer) | self.final(printer),
        }

    def _window(self, node: Reduce, printer: Printer) -> Context:
        statements, (value,) = self.text.statements([node.arg], printer)
        own = {axis for axis, _, _ in node.window}
        windowed = self.plan.windowed
        return self._part([node.arg], printer) | {
            "comment": show(node),
            "function": self._function(node),
            "parameters": [f"index_t from_{axis_name(a)}" for a in windowed],
            "fixed": [
                f"const index_t at_{axis_name(a)} = from_{axis_name(a)};" for a in windowed if a not in own
            ],
            "loops": [
                {"axis": axis_name(axis), "low": _signed(low), "high": _signed(high)}
                for axis, low, high in node.window
            ],
            "statements": [*statements, f"sum[i] += {value};"],
        }

    def _part(self, roots: list[Expr], printer: Printer) -> Context:
        """What a pass loads, and the windowed sums that it asks for."""
        direct = _ends(roots)
        loads = [self._load(self.text.read(o, "")) for o in self.plan.operands if o.tensor.name in direct[0]]
        calls = [
            {
                "sum": self.text.sums[s],
                "function": self._function(s),
                "arguments": [f"at_{axis_name(a)}" for a in self.plan.windowed],
            }
            for s in direct[1]
        ]
        return {"loads": [line for pair in loads for line in pair], "calls": calls}

    def _function(self, node: Reduce) -> str:
        return f"add_up_{self.text.sums[node]}"

    def _load(self, access: Access) -> list[str]:
        operand, address = access.operand, self.address(access)
        inner = self.plan.axes[-1]
        present = access.flag or "true"
        if inner not in operand.tensor.axes:
            load = f"load_scalar({address})"
            load = f"{access.flag} ? {load} : {access.missing}" if access.flag else load
            return [f"const float {access.value} = {load};"]
        if self._adjacent(operand):
            call = f"fetch<{present}>({access.value}, {address}, {access.missing});"
        else:
            stride = self.text.stride(operand.tensor.name, inner)
            call = f"fetch_apart<{present}>({access.value}, {address}, {stride}, {access.missing});"
        return [f"float {access.value}[VEC];", call]


# ------------------------------------------------------------------------------------------------ images


class _Image(_Form):
    """A form that addresses images by the offset of an element."""

    at = "at"

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
        values = {a.operand.tensor.name: f"{a.value}[HALO + i]" for a in wide}
        scalars = []
        for operand in plan.operands:
            if not operand.inner:
                access = text.read(operand, self._offset(operand))
                values[operand.tensor.name] = access.value
                scalars.append(f"const float {access.value} = {access.load};")
        printer = text.printer(values, self.index)
        reach = [max(-low, high) for low, high in plan.reaches]
        lags = [sum(high for _, high in plan.reaches[:k]) for k in range(len(reach) + 1)]
        levels = [
            self._level(k, wide, printer) | self._places(lags[k], sum(reach[k:])) for k in range(len(reach))
        ]
        for k, level in enumerate(levels):
            level["reach_after"] = f"{sum(reach[k + 1 :])} * REACH"
        final = self.final(printer)
        roots = [r.expr for r in plan.results]
        final |= {
            "vectors": self._vectors(roots, wide),
            "declared": [f"{s['value']}[VEC]" for s in final["stores"]],
            "first": "0",
            "last": "VEC",
            "lag": lags[-1],
            "behind": f" - {lags[-1]}" if lags[-1] else "",
        }
        return {
            "digits": digits_of(plan.outer, "image", always=True),
            "vectors": wide,
            "scalars": scalars,
            "sums": list(text.sums.values()),
            "reach": sum(reach),
            "lead": -sum(low for low, _ in plan.reaches),
            "levels": levels,
            "final": final,
        }

    @property
    def index(self) -> str:
        """How an element of a windowed sum is addressed."""
        return "[HALO + i]"

    def _level(self, k: int, wide: list[Access], printer: Printer) -> Context:
        sums = self.plan.levels[k]
        statements, values = self.text.statements([s.arg for s in sums], printer)
        names = [f"{self.text.sums[s]}_of" for s in sums]
        statements += [f"{n}[HALO + i] = {v};" for n, v in zip(names, values, strict=True)]
        return {
            "comment": ", ".join(map(show, sums)),
            "vectors": self._vectors([s.arg for s in sums], wide),
            "declared": [f"{n}[SPAN]" for n in names],
            "statements": statements,
            "sums": [
                {"name": self.text.sums[s], "value": n, "low": s.window[0][1], "high": s.window[0][2]}
                for s, n in zip(sums, names, strict=True)
            ],
        }

    @staticmethod
    def _places(lag: int, reach: int) -> Context:
        return {
            "lag": lag,
            "behind": f" - {lag}" if lag else "",
            "reach": f"{reach} * REACH",
            "first": f"-{reach} * REACH",
            "last": f"VEC + {reach} * REACH",
        }

    @staticmethod
    def _vectors(roots: list[Expr], wide: list[Access]) -> list[Access]:
        loaded = _ends(roots)[0]
        return [a for a in wide if a.operand.tensor.name in loaded]


class _Span(_Image):
    name = "span"


class _March(_Image):
    name = "march"

    @property
    def index(self) -> str:
        return "[place][HALO + i]"


# ------------------------------------------------------------------------------------------------ pieces


def _ends(roots: list[Expr]) -> tuple[set[str], list[Reduce]]:
    """The tensors and the windowed sums that values need, not looking into the sums."""
    stop = Printer({n: "" for n in walk(*roots) if isinstance(n, Reduce)}, {})
    above = list(unnamed(roots, stop))
    tensors = {n.tensor for n in above if isinstance(n, Load)}
    found = [c for n in above for c in children(n)]
    return tensors, list(dict.fromkeys(n for n in [*roots, *found] if isinstance(n, Reduce)))


def _signed(offset: int) -> str:
    return f" + {offset}" if offset > 0 else f" - {-offset}" if offset < 0 else ""


def _declare(text: WindowsText, parameter: Parameter) -> str:
    name = parameter.name
    match parameter.kind:
        case "pointer":
            read = any(o.tensor.name == name for o in text.plan.operands)
            identifier = text.ids[name]
            return f"{'const ' if read else ''}{identifier}_t* __restrict__ {identifier}_ptr"
        case "stride":
            return f"index_t {text.stride(name, parameter.axis)}"
        case "size":
            return f"index_t size_{axis_name(parameter.axis)}"
        case "scalar":
            return f"float {text.scalars[name]}"
        case _:
            return f"index_t {name}"
