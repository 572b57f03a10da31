"""Takes operands of `&&` out of the checker one by one: which of them does no kernel of these tests need?

`python -m tests.host.operands FIRST STEP` prints as JSON those of every STEP-th operand, each as its file and
its text. All share one compilation: each operand looks up whether it is the one. It is tried in a process of
its own, which may crash or hang.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from normgen.cache import default_cache
from normgen.devices.host import compile as building
from normgen.devices.host import executor, load
from normgen.devices.host.executor import HostExecutor
from tests.host import test_faults, test_kernels
from tests.host.sound import SOUND, Sound
from tests.host.test_faults import planted

SECONDS = 5  # of a processor, for one operand
_HEAD = 'extern "C" __attribute__((visibility("default"))) int simt_dropped'  # a declaration
_BLANKED = re.compile(r"//[^\n]*|\"(?:[^\"\\\n]|\\.)*\"")
_TOKENS = re.compile(r"(?<=\s)&&(?=\s)|\|\||[;{},?()\[\]]|(?<!:):(?!:)|(?<![=!<>])=(?!=)|\breturn\b")


def operands(text: str) -> list[tuple[int, int]]:
    """Where each operand of `&&` begins and ends."""
    code = _BLANKED.sub(lambda found: " " * len(found[0]), text)
    tokens = list(_TOKENS.finditer(code))
    found = set()
    for place, token in enumerate(tokens):
        if token[0] == "&&":
            found.add((_edge(tokens[:place][::-1], ")]", "([").end(), token.start()))
            found.add((token.end(), _edge(tokens[place + 1 :], "([", ")]").start()))
    return sorted(found)


def _edge(tokens: list[re.Match[str]], opening: str, closing: str) -> re.Match[str]:
    """The first token that is not within brackets."""
    depth = 0
    for token in tokens:
        if depth == 0 and token[0] not in opening:
            return token
        depth += (token[0] in opening) - (token[0] in closing)
    raise AssertionError("a bracket that nothing closes")


def every_operand() -> list[tuple[str, str]]:
    """The file and the text of each operand, in the order of their numbers."""
    texts = [(name, (building.SHIM / name).read_text()) for name in building._RUNTIME]
    return [(name, " ".join(t[begin:end].split())) for name, t in texts for begin, end in operands(t)]


def _load_altered(folder: Path) -> ctypes.c_int:
    """Load the runtime with a switch at each operand, by the name by which kernels ask for it."""
    compiler = building.find_compiler()
    usual = building.build_runtime(default_cache(), compiler)
    soname = building._soname(usual.stem)
    number, files = 0, []
    for name in building._RUNTIME:
        text, edits = (building.SHIM / name).read_text(), list[tuple[int, str]]()
        for begin, end in operands(text):
            number += 1
            edits += [(begin, f" (simt_dropped == {number} || ("), (end, "))")]
        for place, put in sorted(edits, reverse=True):
            text = text[:place] + put + text[place:]
        head = f"{_HEAD} = 0;" if not files else f"{_HEAD};"
        files.append(folder / name)
        files[-1].write_text(f'{head}\n#line 1 "{name}"\n{text}')
    target = folder / "altered.so"
    flags = [*building._ALWAYS, "-O2", "-w", "-shared", f"-I{building.SHIM}", f"-Wl,-soname,{soname}"]
    subprocess.run([compiler.path, *flags, *map(str, files), "-o", str(target)], check=True)
    load._runtimes[usual.name] = library = load._library(target, "simt_run", "simt_report")
    return ctypes.c_int.in_dll(library, "simt_dropped")


def _told(report: str, *rest: object) -> str:
    """A report as it is, which takes less time than to find its lines."""
    names = rest[-1]
    assert isinstance(names, list)
    return re.sub(r"<buffer:(\d+)>", lambda found: str(names[int(found[1])]), report)


def _same_traffic(sound: Sound, order: int, wanted: dict[str, object]) -> None:
    """A sound kernel is not blamed, and moves what it did."""
    executor = HostExecutor(True, order)
    sound.run(executor)
    assert wanted.setdefault(sound.name, executor.traffic) == executor.traffic


def _checks() -> Iterator[Callable[[], object]]:
    wanted: dict[str, object] = {}
    for sound in SOUND.values():
        for order in (0,) if sound.name == "lock" else (0, 1, 2):
            yield partial(_same_traffic, sound, order, wanted)
    yield from (
        partial(test_faults.test_planted_fault_is_reported, replace(each, line="")) for each in planted()
    )
    yield test_faults.test_misaligned_view
    yield test_faults.test_reports_are_the_same_wherever_arrays_lie
    yield test_faults.test_calls_that_are_faults
    yield test_faults.test_divergence_is_found_without_checking_too
    yield test_faults.test_invalid_launch
    yield test_faults.test_what_is_a_fault_depends_on_the_launch
    yield test_kernels.test_traffic_is_counted
    yield test_kernels.test_three_dimensional_launch_and_votes
    yield test_kernels.test_shuffles_with_widths
    yield test_kernels.test_blocks_add_what_all_released
    yield from (partial(_same_traffic, sound, 0, wanted) for sound in SOUND.values())  # as faults leave all


def _is_needed(checks: list[Callable[[], object]]) -> bool:
    """Whether some check fails, or ends the process, in a process of its own."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        try:
            for check in checks:
                check()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] != 0


def main(first: int, step: int) -> list[tuple[str, str]]:
    executor.tell = _told
    test_faults.SECONDS = 0.05  # what is endless takes most of the time
    with tempfile.TemporaryDirectory() as folder:
        dropped = _load_altered(Path(folder))
        checks = list(_checks())
        for check in checks:
            check()  # with all operands; what it compiles is there then
        missed = []
        for number, operand in enumerate(every_operand(), 1):
            dropped.value = number
            if number % step == first and not _is_needed(checks):
                missed.append(operand)
    return missed


if __name__ == "__main__":
    print(json.dumps(main(*map(int, sys.argv[1:]))))
