"""The same spec gives the same text: in another process, with another hash seed, after other specs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Every bundled spec through every stage, last ones first if asked; prints a digest of each text.
PROGRAM = """
import hashlib, json, sys
from normgen import bundled
from normgen.api import module_of
from normgen.diagnostics import SpecError
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.ir.grad import backward
from normgen.ir.show import show_program
from normgen.verify.draw import attr_choices

found = {}
for name in sorted(bundled.names(), reverse="reverse" in sys.argv):
    source = bundled.read(name)
    for attrs in attr_choices(parse(source), {})[:1]:
        definition = load_definition(source, attrs)
        texts = [show_program(definition.program), show_program(backward(definition))]
        try:
            texts.append(module_of(definition))
        except SpecError:
            pass
        found[f"{name} {attrs}"] = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
print(json.dumps(found, sort_keys=True))
"""


def digests(*arguments: str, seed: str) -> dict[str, list[str]]:
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, list[str]] = json.loads(done.stdout)
    return result


def test_texts_do_not_depend_on_seed_or_order() -> None:
    first = digests(seed="0")
    assert len(first) >= 12 and any(len(texts) == 3 for texts in first.values())
    assert digests("reverse", seed="1") == first
