"""The same spec gives the same text: in another process, with another hash seed, after other specs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Some bundled specs through every stage, last ones first if asked; prints a digest of each text. That the
# texts of all of them stay as they are, whatever the seed of this run, their digests show.
PROGRAM = """
import hashlib, json, sys
from normgen import bundled
from normgen.api import module_text
from normgen.codegen.compilation import Compilation
from normgen.dsl import load_definition
from normgen.dsl.syntax import parse
from normgen.ir.grad import backward
from normgen.ir.show import show_program
from normgen.verify.draw import attr_choices

found = {}
for name in sorted(("batchnorm", "layernorm", "rmsnorm_fp8"), reverse="reverse" in sys.argv):
    source = bundled.read(name)
    definition = load_definition(source, attr_choices(parse(source), {})[0])
    texts = [show_program(definition.program), show_program(backward(definition))]
    texts.append(module_text(Compilation(definition)))
    found[name] = [hashlib.sha256(text.encode()).hexdigest() for text in texts]
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
    assert len(first) == 3
    assert digests("reverse", seed="1") == first
