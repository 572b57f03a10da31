"""Steps of a rank's own tensors: by kernels on a GPU, by PyTorch's operators on a CPU and in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from normgen.locks import cached_property
from normgen.runtime.norm import Norm
from normgen.torch import layouts
from normgen.torch.calls import Calls, Known, Numbers, Tensors, Wanted, prepare
from normgen.torch.choice import cpu_kernels
from normgen.torch.derived import Derived
from normgen.torch.eager import recorder
from normgen.torch.errors import check_host, check_kinds, check_numbers
from normgen.torch.imagine import check_types
from normgen.torch.steps import Call, Outline, Recorder, Step, without_data


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
        self._recorder: Recorder | None = None

    @cached_property
    def derived(self) -> Derived:
        """The same by PyTorch's operators."""
        return Derived(self.direction, self.program, tuple(attr.name for attr in self.attrs))

    @cached_property
    def _last_norm(self) -> Norm | None:
        """The norm for tensors whose channels lie innermost."""
        return self._channels_last()

    def recorder(self, tensors: Tensors, call: Call) -> Recorder | None:
        """Where nothing is launched, what an operator costs is much of a call."""
        if cpu_kernels() or not _on_cpu(tensors):
            return None
        if self._recorder is None:
            self._recorder = recorder(self, lambda *given: self.run(*given), call)
        return self._recorder

    def _prepare(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> Known:
        """What runs calls on such tensors: kernels, mostly as the tensors lie."""
        direction = self.direction
        if without_data(tensors):
            return Known(lambda _, given, values, __: self._imagined(given, values, wanted))
        if _in_float64(tensors, wanted) or (_on_cpu(tensors) and not cpu_kernels()):
            return self._by_operators(tensors, numbers, wanted)
        last = layouts.results_last(direction, tensors)
        if last and self._last_norm is not None:
            given = layouts.innermost(tensors, direction)
            return prepare(self._last_norm, direction.name, given, numbers, wanted, last)
        known = prepare(self._norm, direction.name, tensors, numbers, wanted)
        return Known(lambda *given: self.laid(known.repeated(*given), last)) if last else known

    def _run(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        return self.calls.run(tensors, numbers, wanted)

    def traced(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        read = tensors[: len(self.direction.reads)]
        check_kinds(self.direction.reads, read)
        made = self.derived.prepare(read, wanted, reuses=False)(read, numbers)
        return (*made.results, *(made.states.get(name) for name in self.updated))

    def _imagined(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> tuple[Any, ...]:
        check_kinds(self.direction.reads, tensors)
        check_numbers(self.attrs, numbers)
        return self.imagined(tensors, wanted)[: len(self.results)]

    def _by_operators(self, tensors: Tensors, numbers: Numbers, wanted: Wanted) -> Known:
        """What runs such calls by PyTorch's operators. States are updated in place."""
        reads, places = self.direction.reads, [self.operands.index(name) for name in self.updated]
        check_kinds(reads, tensors)
        check_numbers(self.attrs, numbers)
        given = {name: each for name, each in zip(reads, tensors, strict=True) if each is not None}
        if _in_float64(tensors, wanted):
            check_host(given)
        else:
            check_types(self.direction, given)
        call = self.derived.prepare(tensors, wanted, reuses=True)

        def repeated(_: Any, tensors: Tensors, numbers: Numbers, __: Any) -> tuple[Any, ...]:
            with torch.no_grad():
                made = call(tensors, numbers)
                for name, place in zip(self.updated, places, strict=True):
                    if name in made.states:
                        tensors[place].detach().copy_(made.states[name])
            return made.results

        return Known(repeated)


def _in_float64(tensors: Tensors, wanted: Wanted) -> bool:
    types = [*(tensor.dtype for tensor in tensors if tensor is not None), *dict(wanted.types).values()]
    return torch.float64 in types


def _on_cpu(tensors: Tensors) -> bool:
    return all(tensor is None or tensor.is_cpu for tensor in tensors)
