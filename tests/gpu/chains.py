"""Every bundled norm, and what it makes when its calls come one by one: what a chain of them must make too.

In a chain nothing waits between calls: a kernel may start before those ahead of it have written. Two calls
with different numbers take turns, so that memory that is read too early holds what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from normgen.verify.cases import DTYPE_SETS, axis_order, same_dtype
from tests.gpu.calls import MODES, Call, Made, differentiate, forward, known, place
from tests.gpu.judge import check
from tests.gpu.sequences import same_bits
from tests.torch.drawing import variants

DEVICE = "cuda"
CYCLES = 60_000_000  # that a stream sleeps while calls queue up behind
F32, BF16, MIXED = same_dtype("f32"), same_dtype("bf16"), DTYPE_SETS[5]
USUAL_ATTRS = {"groups": 4, "head_dim": 128, "group": 32}
# Of images: samples, channels (of a group) and places.
IMAGES = (
    ((32, 4, 4096), F32),
    ((8, 64, 1024), F32),
    ((2, 64, 4096), F32),
    ((16, 24, 196), BF16),
)
# Of all others: rows and their width.
ROWS = (((64, 4096), BF16), ((2048, 768), F32), ((3, 65536), F32), ((37, 1023), MIXED))
# Calls that write scratch memory: sums over rows, and statistics that blocks share.
WITH_SCRATCH = (
    Call("batchnorm", (("training", True),), sizes=(("B", 32), ("C", 4), ("...", 4096)), dtypes=F32),
    Call("rmsnorm", (), 2048, 768, BF16),
    Call("layernorm", (), 64, 4096, F32),
    Call("groupnorm", (("groups", 4),), sizes=(("B", 2), ("C", 16), ("...", 4096)), dtypes=BF16),
)
FILL = 7
LARGEST = 1 << 22
Results = list[Any]


def calls() -> list[Call]:
    """Each bundled norm in some shapes."""
    return [call for spec, attrs in variants() for call in _calls_of(spec, attrs)]


def _calls_of(spec: str, attrs: dict[str, Any]) -> list[Call]:
    fixed = tuple((name, USUAL_ATTRS.get(name, value)) for name, value in attrs.items())
    axes = axis_order(known(spec, fixed).definition)
    if {"B", "C", "..."} <= set(axes):
        named = [(dict(zip(("B", "C", "..."), lengths, strict=True)), dtypes) for lengths, dtypes in IMAGES]
        return [Call(spec, fixed, sizes=tuple(sizes.items()), dtypes=dtypes) for sizes, dtypes in named]
    return [_fitting(Call(spec, fixed, rows, width, dtypes)) for (rows, width), dtypes in ROWS]


def _fitting(call: Call) -> Call:
    """A call with fewer rows where these have more axes than one."""
    while call.rows > 1 and call.case.elements(call.norm.definition) > LARGEST:
        call = replace(call, rows=call.rows // 2)
    return call


# Where there is no device nothing is drawn, which takes some time.
EVERY = calls() if torch.cuda.is_available() else []


class Chain:
    """Two sets of operands of a call, laid once, that are called in turn."""

    def __init__(self, call: Call, device: str = DEVICE) -> None:
        self.wait = torch.cuda.synchronize if device == DEVICE else lambda: None
        self.made = [place(replace(call, seed=seed), device) for seed in (0, 1)]
        self.states = [_states(each, torch.clone) for each in self.made]

    @cached_property
    def want(self) -> list[Results]:
        """What the calls make when all before them has ended; of one of the two held to its bounds."""
        found = [self._step(which, self.wait) for which in (0, 1)]
        check(self.made[0])
        return found

    def run(self, turns: int) -> list[Results]:
        """What the calls make, in turn."""
        return [self._step(turn % 2) for turn in range(turns)]

    def _step(self, which: int, wait: Callable[[], Any] = lambda: None) -> Results:
        made = self.made[which]
        for state, start in zip(_states(made, lambda s: s), self.states[which], strict=True):
            state.copy_(start)
        made.gradients = {}
        wait()
        forward(made)
        wait()
        if MODES[made.call.mode][1]:
            differentiate(made)
            wait()
        return _kept(made)

    def hold(self, found: list[Results], what: str) -> None:
        """These must be, to the bit, what the calls make one by one."""
        self.wait()
        wrong = [
            f"turn {turn}: {name}"
            for turn, made in enumerate(found)
            for name, got, want in zip(self._names(turn % 2), made, self.want[turn % 2], strict=True)
            if not same_bits(got, want)
        ]
        count = sum(map(len, found))
        assert not wrong, f"{self.made[0].call}: {what}: {len(wrong)} of {count} results differ: {wrong[:6]}"

    def _names(self, which: int) -> list[str]:
        made = self.made[which]
        states = [
            t.name for t in made.call.norm.operands if t.role == "state" and made.tensors[t.name] is not None
        ]
        return [*made.outputs, *states, *(f"d{name}" for name in made.gradients)]


def _states(made: Made, each: Callable[[Any], Any]) -> list[Any]:
    states = [made.tensors[t.name] for t in made.call.norm.operands if t.role == "state"]
    return [each(state) for state in states if state is not None]


def _kept(made: Made) -> Results:
    """What a call made; states are copied, since the next call writes them."""
    states = _states(made, torch.clone)
    return [*(o.detach() for o in made.outputs.values()), *states, *made.gradients.values()]


def captured(run: Callable[[], Any], warm: int = 3, pool: Any = None, stream: Any = None) -> tuple[Any, Any]:
    """What a run makes, and the graph that makes it again. `warm`: calls ahead, as PyTorch asks for."""
    stream = stream or torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, pool=pool):
        made = run()
    return made, graph


def filled() -> Iterator[Any]:
    """Memory of many sizes, taken from what is free, with one number in it."""
    for power in range(9, 24):
        for _ in range(8 if power < 21 else 2):
            yield torch.full((1 << power,), FILL, dtype=torch.uint8, device=DEVICE)


def untouched(memory: Any) -> bool:
    """Whether such memory is as it was."""
    return bool((memory == FILL).all())
