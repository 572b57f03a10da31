"""Random sequences of calls, in which each has neighbours that differ from it in one thing alone.

A cache of calls whose key lacks something takes one neighbour for another; memory that is given back too soon
is written while it is read. So calls come in turns, and a backward often waits until others have run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from typing import Any

from normgen.verify.cases import DTYPE_SETS
from tests.gpu.calls import MODES, Call, Made, differentiate, forward, place
from tests.gpu.judge import check
from tests.gpu.layouts import LAYOUTS, OWN
from tests.torch.drawing import variants

BOUT = 20  # calls that are made before others are drawn
WAITING = 3  # calls whose backward is still to come, at most


@dataclass(frozen=True)
class Sizes:
    """The lengths that are drawn, and how many elements an operand has at most."""

    rows: tuple[int, ...]
    widths: tuple[int, ...]
    largest: int


ON_GPU = Sizes(
    (1, 2, 3, 5, 8, 17, 64, 256, 1000), (1, 2, 7, 8, 31, 64, 100, 257, 512, 1000, 1024, 4096), 1 << 17
)
ON_HOST = Sizes((1, 2, 3, 5), (1, 2, 7, 8, 16, 33), 1 << 9)


def draw_call(random: Random, sizes: Sizes, names: tuple[str, ...] | None = None) -> Call:
    """Any call that has gradients."""
    spec, attrs = random.choice([v for v in variants() if names is None or v[0] in names])
    call = _dtypes(random, _lengths(random, Call(spec, tuple(attrs.items())), sizes), sizes)
    for _ in range(random.randrange(3)):
        call = random.choice((_layout, _left_out, _scalars))(random, call, sizes)
    return call


def neighbours(random: Random, call: Call, sizes: Sizes, many: int) -> list[Call]:
    """Calls that each differ from one in one thing, every time another as long as there are more."""
    found: list[Call] = []
    changes: list[Callable[[Random, Call, Sizes], Call]] = []
    for _ in range(20 * many):
        changes = changes or random.sample(_CHANGES, len(_CHANGES))
        other = changes.pop()(random, call, sizes)
        if other not in (call, *found):
            found.append(other)
        if len(found) == many:
            break
    return found


def _lengths(random: Random, call: Call, sizes: Sizes) -> Call:
    for _ in range(50):
        found = replace(call, rows=random.choice(sizes.rows), width=random.choice(sizes.widths))
        if found.case.elements(found.norm.definition) <= sizes.largest:
            return found
    return call


def _rows(random: Random, call: Call, sizes: Sizes) -> Call:
    found = replace(call, rows=call.rows + random.choice((-1, 1, 8)))
    return found if found.rows >= 0 else call


def _dtypes(random: Random, call: Call, sizes: Sizes) -> Call:
    return replace(call, dtypes=random.choice(DTYPE_SETS))


def _mode(random: Random, call: Call, sizes: Sizes) -> Call:
    return replace(call, mode=random.choice(tuple(MODES)))


def _layout(random: Random, call: Call, sizes: Sizes) -> Call:
    tensors = {t.name: OWN if t.role == "state" else tuple(LAYOUTS) for t in call.norm.operands}
    tensors |= {f"d{name}": tuple(LAYOUTS) for name in call.norm.differentiated}
    name = random.choice(tuple(tensors))
    return replace(
        call, layouts=tuple(sorted({**dict(call.layouts), name: random.choice(tensors[name])}.items()))
    )


def _left_out(random: Random, call: Call, sizes: Sizes) -> Call:
    """One operand more or less, or one output more or less that a cotangent comes to."""
    optional = call.norm.optional
    outputs = call.norm.differentiated if len(call.norm.differentiated) > 1 else ()
    if not optional and not outputs:
        return call
    name = random.choice((*optional, *outputs))
    if name in optional:
        return replace(call, absent=_toggled(call.absent, name))
    unread = _toggled(call.unread, name)
    return call if len(unread) == len(outputs) else replace(call, unread=unread)


def _toggled(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(sorted(set(names) ^ {name}))


def _wrt(random: Random, call: Call, sizes: Sizes) -> Call:
    """As many gradients as another call has, or others."""
    names = call.norm.definition.wrt
    few = [(name,) for name in names] + [tuple(n for n in names if n != name) for name in names]
    return replace(call, wrt=random.choice([*few, ()]))


def _scalars(random: Random, call: Call, sizes: Sizes) -> Call:
    attrs = [a for a in call.norm.definition.program.attrs if a.kind == "float" and not a.folded]
    if not attrs:
        return call
    attr = random.choice(attrs)
    return replace(call, scalars=((attr.name, random.choice((0.25, 0.5, 0.75))),))


_CHANGES: tuple[Callable[[Random, Call, Sizes], Call], ...] = (
    _rows, _lengths, _dtypes, _mode, _layout, _layout, _left_out, _wrt, _scalars,
)  # fmt: skip


def draw_sequence(
    random: Random, sizes: Sizes, steps: int, names: tuple[str, ...] | None = None
) -> Iterator[Call]:
    """Calls that come in turn with some of their neighbours, each with numbers of its own."""
    seeds = count()
    for done in range(0, steps, BOUT):
        left = min(BOUT, steps - done)
        call = draw_call(random, sizes, names)
        others = neighbours(random, call, sizes, left // 2)
        kinds = [call, call, *others]  # the second call is known, when others come
        kinds += random.choices(kinds, k=max(0, left - len(kinds)))
        yield from (replace(kind, seed=next(seeds)) for kind in kinds[:left])


def play(calls: Iterator[Call], random: Random, device: str, around: Callable[[], Any] = nullcontext) -> int:
    """Make these calls, some backwards later than others, and check each. `around`: what surrounds a call.
    Returns how many there were."""
    waiting: list[Made] = []
    made_so_far = 0
    for call in calls:
        made_so_far += 1
        with around():
            waiting.append(forward(place(call, device)))
        while len(waiting) > random.randrange(WAITING + 1):
            made = waiting.pop(random.randrange(len(waiting)))
            finish(made, random, around)
    for made in waiting:
        finish(made, random, around)
    return made_so_far


def finish(made: Made, random: Random, around: Callable[[], Any]) -> None:
    """The backward of a call, at times twice, and all checks."""
    if MODES[made.call.mode][1]:
        twice = random.random() < 0.2
        with around():
            differentiate(made, retain_graph=twice)
            if twice:
                first = made.gradients
                made.gradients = {}
                differentiate(made)
                assert all(same_bits(first[name], made.gradients[name]) for name in first), made.call
    check(made)


def same_bits(a: Any, b: Any) -> bool:
    """Whether two tensors are the same to the bit, NaN included."""
    import torch

    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (a, b)))
