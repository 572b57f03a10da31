"""A norm as a function of tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from normgen.package.direction import result_tuple, tuple_name
from normgen.runtime.described import call_signature, call_text
from normgen.runtime.norm import Norm
from normgen.torch import private
from normgen.torch.autocast import full, widened
from normgen.torch.autograd import call
from normgen.torch.calls import Tensors, Wanted
from normgen.torch.levels import first_step
from normgen.torch.local import LocalStep
from normgen.torch.native import EXTENSION
from normgen.torch.node import Fast, function
from normgen.torch.operators import attach
from normgen.torch.signature import Signature
from normgen.torch.steps import Step


class Operators(NamedTuple):
    """The operators of a function, `torch.ops.normgen.*`, for policies that name operators."""

    forward: Any
    backward: Any  # None where nothing is differentiated


class NormFunction:
    """A norm as a function of tensors, which PyTorch differentiates, compiles and exports.

    Operands go by position, in the order of the spec, or by name; attrs by name. A param that has a default
    may be left out, or be None. Returns the spec's output, or a named tuple of several. States are updated in
    place. Tensors on a GPU run kernels on its current stream; CPU tensors run PyTorch's operators, or kernels
    on the checked host executor with `NORMGEN_CPU=kernels`.
    """

    _fast: Fast | None = None  # the calls that are known, in C++

    def __init__(self, norm: Any, step: Step | None = None) -> None:
        """`norm`: a `Norm`; or what `step` is the forward of, on one of several ranks."""
        self.norm = norm
        self.__name__ = norm.name
        if step is None:
            assert isinstance(norm, Norm)
            step = first_step(norm)
        self._step: Step = step
        self.__doc__ = call_text(norm.package, step.direction, ())
        self.__signature__ = call_signature(norm.package, step.direction, ())
        attach(step)
        derivative = step.derive()
        if derivative is not None:
            attach(derivative.step)
        self.ops = Operators(step.operator, derivative and derivative.step.operator)
        self._outputs = step.outputs
        self._wanted = Wanted(step.outputs)
        self._signature = Signature(norm.package, step)
        self._tuple = _tuple(norm.name, "outputs", step.outputs) if len(step.outputs) > 1 else None
        self._all = _tuple(norm.name, "forward", step.results)

    @property
    def step(self) -> Step:
        """The compiled forward step."""
        return self._step

    def __call__(self, *operands: torch.Tensor | None, **named: Any) -> Any:
        """The output, or a named tuple of outputs."""
        if not torch.compiler.is_compiling():
            if self._fast is None:
                if EXTENSION.there:
                    self._fast = self._in_extension()
            elif (made := self._fast(*operands, **named)) is not None:
                return made
        operands, numbers = self._signature.bind(operands, named)
        if private.may_autocast():
            operands = self._cast(operands)
        made = call(self._step, operands, numbers, self._wanted)
        return made[0] if self._tuple is None else self._tuple._make(made[: len(self._outputs)])

    def with_saved(self, *operands: torch.Tensor | None, **named: Any) -> Any:
        """A named tuple of outputs, then of the spec's saves for its backward. Gradients flow only through
        the outputs."""
        operands, numbers = self._signature.bind(operands, named)
        return self._all._make(call(self._step, self._cast(operands), numbers, Wanted(self._step.results)))

    def _in_extension(self) -> Fast | None:
        if not isinstance(self._step, LocalStep):
            return None
        together = None if self._tuple is None else self._tuple._make
        return function(self._step, self._signature, widened(self.norm.name), together, call)

    def _cast(self, operands: Tensors) -> Tensors:
        """The operands as autocast has them."""
        return full(*operands) if torch.is_autocast_enabled("cuda") and widened(self.norm.name) else operands

    def __reduce__(self) -> Any:
        from normgen.torch.loading import restored

        return restored, (self.norm.package.spec, self.norm.package.folded)

    def _repr_html_(self) -> str:
        """What a notebook shows: operands, outputs and formulas."""
        return str(self.norm._repr_html_())

    def __repr__(self) -> str:
        return f"<normgen.torch function {self.norm!r}>"


def _tuple(norm: str, what: str, names: tuple[str, ...]) -> Any:
    return result_tuple(tuple_name(norm, what), names)
