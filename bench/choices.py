"""The schedules that are taken for every call of the bench on an H200, as data: a JSON line a call.

    PYTHONPATH=. python -m bench.choices        # write bench/choices/h200.jsonl anew

A change of planning shows in the difference. A knob that has its default is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.problems import DTYPES, LAYOUTS, OPS, problems
from normgen.launching.knobs import short
from normgen.launching.machine import USUAL_MACHINE
from normgen.runtime.planning.choose import fastest

PATH = Path(__file__).parent / "choices" / "h200.jsonl"


def choices() -> Iterator[dict[str, Any]]:
    """What is taken, call by call."""
    for problem in problems(OPS, DTYPES, (), LAYOUTS):
        for direction in problem.directions:
            called, binding = problem.call(direction)
            taken = fastest(called.record, binding, USUAL_MACHINE)
            yield {
                "call": problem.text,
                "direction": direction,
                "strategy": taken.strategy.name,
                "schedules": {each.kernel.name: short(each.schedule) for each in taken.kernels},
            }


def text() -> str:
    """The file, as it should be."""
    return "".join(f"{json.dumps(choice)}\n" for choice in choices())


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(text())
