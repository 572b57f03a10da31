"""Steps that kernels make of a rank's own tensors, or in float64 the program itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from normgen.locks import cached_property
from normgen.runtime.norm import Norm
from normgen.torch import layouts
from normgen.torch.calls import Calls, Known, Numbers, Tensors, Wanted, prepare
from normgen.torch.errors import check_host, check_kinds, check_numbers
from normgen.torch.float64 import Interpreter
from normgen.torch.steps import Outline, Step, without_data


class LocalStep(Step):
    """A direction of a norm as kernels compute it."""

    def __init__(
        self, outline: Outline, norm: Norm, channels_last: Callable[[], Norm | None] = lambda: None
    ) -> None:
        """`channels_last`: makes the norm for tensors whose channels lie innermost, None where there is
        none."""
        super().__init__(outline)
        self._norm = norm
        self._channels_last = channels_last
        self.calls = Calls(norm, outline.direction.name, self._prepare)

    @cached_property
    def interpreter(self) -> Interpreter:
        """The same in float64."""
        return Interpreter(self.direction, self.program)

    @cached_property
    def _last_norm(self) -> Norm | None:
        """The norm for tensors whose channels lie innermost."""
        return self._channels_last()

    def _prepare(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> Known:
        """What runs calls on such tensors: kernels, mostly as the tensors lie."""
        direction = self.direction
        types = [*(tensor.dtype for tensor in tensors if tensor is not None), *dict(wanted.types).values()]
        if torch.float64 in types:
            return Known(lambda _, given, values, __: self._interpreted(given, values, wanted))
        if without_data(tensors):
            return Known(lambda _, given, *__: self.imagined(given, wanted))
        last = layouts.results_last(direction, tensors)
        if last and self._last_norm is not None:
            given = layouts.innermost(tensors, direction)
            return prepare(self._last_norm, direction.name, given, numbers, wanted, last)
        known = prepare(self._norm, direction.name, tensors, numbers, wanted)
        return Known(lambda *given: self.laid(known.repeated(*given), last)) if last else known

    def _run(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        return self.calls.run(tensors, numbers, wanted)

    def _interpreted(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        reads = self.direction.reads
        check_kinds(reads, tensors)
        check_numbers(self.attrs, numbers)
        if without_data(tensors):
            return self.imagined(tensors, wanted)
        given = {name: each.detach() for name, each in zip(reads, tensors, strict=True) if each is not None}
        check_host(given)
        scalars = {attr.name: number for attr, number in zip(self.attrs, numbers, strict=True)}
        last = layouts.results_last(self.direction, tensors)
        return self.laid(self.interpreter.run(given, scalars, wanted), last)
