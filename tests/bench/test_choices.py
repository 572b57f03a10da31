"""What is taken for the calls of the bench is what bench/choices holds."""

from __future__ import annotations

import json

from bench.choices import PATH, text


def test_choices_are_those_that_are_written_down() -> None:
    found, known = text().splitlines(), PATH.read_text().splitlines()
    changed = [line for line in found if line not in known]
    assert not changed, (
        f"{len(changed)} choices differ; if they are better: python -m bench.choices\n{changed[0]}"
    )
    assert found == known


def test_every_choice_names_its_call_once() -> None:
    calls = [(each["call"], each["direction"]) for each in map(json.loads, PATH.read_text().splitlines())]
    assert len(calls) == len({*calls}) > 300
