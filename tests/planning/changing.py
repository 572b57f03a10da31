"""Schedules whose knobs are changed at random, as they might be read from a file."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from normgen.launching.knobs import Knobs, schedule_of
from normgen.launching.support import Support
from normgen.runtime.planning.choose import Candidate
from normgen.runtime.planning.registry import family_of

_TOLD = re.compile(r"(\w+) is \w+, and (\d+) fits")


def changed(random: Random, offer: Candidate) -> Knobs:
    """The knobs of an offer, some of them changed, and what goes with them put right as its family says."""
    knobs = dict(offer.knobs)
    for name in random.sample(sorted(knobs), random.choice((1, 1, 2, 3))):
        match knobs[name]:
            case bool() as on:
                knobs[name] = not on
            case int() as number:
                knobs[name] = random.choice((2 * number, number // 2, number + 1, number - 1, 1, 4))
            case str():
                knobs[name] = random.choice([form.form for form in offer.kernel.forms])
    for _ in range(4):
        found = settled(offer, tuple(knobs.items()))
        told = _TOLD.fullmatch(found.reason) if isinstance(found, Support) else None
        if told is None:
            break
        knobs[told[1]] = int(told[2])
    return tuple(knobs.items())


def settled(offer: Candidate, knobs: Knobs) -> Any:
    """The schedule of these knobs for an offer's kernel, or the `Support` that says why it has none."""
    family = family_of(offer.kernel)
    asked = schedule_of(family.schedule, knobs)
    return asked if isinstance(asked, Support) else family.settle(offer.kernel, offer.call, asked)
