"""Faults planted in the sources, one at a time: the test that is there for it fails."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Fault:
    """In a file of `normgen/`, `what` becomes `instead`; `tests`, and `-k` of them, must then fail."""

    name: str
    file: str
    what: str
    instead: str
    tests: str
    choice: str = ""


FAULTS = [
    Fault(
        "every block of rows stores gradients of its own",
        "families/rows/launch/blocks.py",
        "able and self.partials == 1",
        "able",
        "tests/codegen/test_few_rows.py",
        "many_rows",
    ),
    Fault(
        "every result is taken for aligned",
        "runtime/calls/binding.py",
        "alignment = _check_out(name, out[name], shape, dtype)",
        "_check_out(name, out[name], shape, dtype)",
        "tests/verify/test_calls.py",
        "another_alignment and rmsnorm and 0-1",
    ),
    Fault(
        "vectors of rows suit what is read alone",
        "launching/call.py",
        "not all(self._aligned(o, vector) for o in operands)",
        'not all(self._aligned(o, vector) for o in operands if o.tensor[:1] not in "yd")',
        "tests/verify/test_calls.py",
        "another_alignment and rmsnorm and 0-1",
    ),
    *(
        Fault(
            f"vectors suit the stride of the {name} axis alone",
            "launching/call.py",
            "for axis, s in outer]",
            f"for axis, s in outer[{axes}]]",
            "tests/verify/test_calls.py",
            f"each_stride and columns and {pitch}",
        )
        for name, axes, pitch in (("outermost", ":1", "odd and rows"), ("innermost", "-1:", "outer"))
    ),
    Fault(
        "a copy numbers its elements in 32 bits",
        "templates/copy.cu",
        "Index rest = Index(i);",
        "unsigned int rest = i;",
        "tests/runtime/test_calls_on_host.py",
        "more_than_32_bits",
    ),
    Fault(
        "a copy's offsets have 32 bits",
        "templates/copy.cu",
        "long long offset = 0;",
        "int offset = 0;",
        "tests/runtime/test_calls_on_host.py",
        "more_than_32_bits",
    ),
    Fault(
        "a copy divides in 32 bits",
        "runtime/calls/utility_kernels.py",
        "count < 2**31",
        "count < 2**40",
        "tests/runtime/test_calls_on_host.py",
        "more_than_32_bits",
    ),
    Fault(
        "tuning takes 3 % for rounding",
        "measure/agreement.py",
        "OF_LARGEST = 2.0**-14",
        "OF_LARGEST = 0.03",
        "tests/measure/test_agreement.py",
    ),
    Fault(
        "tuning takes what was there for written",
        "measure/agreement.py",
        "UNWRITTEN = 0xFF",
        "UNWRITTEN = 0",
        "tests/measure/test_agreement.py",
    ),
    Fault(
        "a strategy is never asked to add to gradients",
        "verify/rotation.py",
        "worth[strategy] = (ACCUMULATED in new, ",
        "worth[strategy] = (strategy == group % 2, ",
        "tests/verify/test_coverage.py",
        "asked_for",
    ),
    Fault(
        "tuning takes 4 units for rounding",
        "measure/agreement.py",
        "UNITS = 2 ",
        "UNITS = 4 ",
        "tests/measure/test_agreement.py",
    ),
    Fault(
        "a gradient may be wrong by 1 %",
        "verify/gradient.py",
        "TOLERANCE = 1e-6",
        "TOLERANCE = 1e-2",
        "tests/verify/test_gradient.py",
    ),
    Fault(
        "results are never looked at for alignment",
        "runtime/calls/prepared.py",
        "return self.idle or not any(address & 15 for address in addresses)",
        "return True",
        "tests/runtime/test_calls_on_host.py",
        "narrower_words",
    ),
    Fault(
        "the logarithm of a base of 0",
        "ir/primitives.py",
        'zero = ir.call("and", ir.compare("==", base, 0), ir.compare(">=", exponent, 0))',
        'zero = ir.compare("<", base, base)',
        "tests/ir/test_grad.py",
        "power",
    ),
    Fault(
        "a minimum is not negative where one argument is not",
        "ir/primitives.py",
        "exact=min, integral=True, nonnegative=all",
        "exact=min, integral=True, nonnegative=any",
        "tests/ir/test_canonical.py",
        "what_is_known",
    ),
    Fault(
        "in place over what an earlier kernel reads of the result",
        "launching/in_place.py",
        "if not touching or any(output in _touched(k) for k in touching[:-1]):",
        "if not touching:",
        "tests/runtime/test_in_place.py",
        "earlier_kernel",
    ),
    Fault(
        "offsets of rows have 32 bits",
        "templates/device/vector.cuh",
        "Offset((unsigned long long)(unsigned int)row * (unsigned int)stride)",
        "Offset((unsigned int)row * (unsigned int)stride)",
        "tests/codegen/test_far_rows.py",
        "rmsnorm",
    ),
    Fault(
        "a column that begins with -inf, read in several passes",
        "templates/device/columns/columns.cuh",
        "if (higher == -INFINITY) continue;",
        "",
        "tests/codegen/test_exponentials_of_infinities.py",
        "columns and multipass",
    ),
    Fault(
        "a kernel that may start early does not wait",
        "templates/rows/registers.cu.jinja",
        "{% if PROGRAMMATIC %}\n    programmatic_wait();\n{% endif %}\n{% endif %}\n{% if tagged %}",
        "{% endif %}\n{% if tagged %}",
        "tests/codegen/test_exponentials_of_infinities.py",
        "rows and warp",
    ),
    Fault(
        "the parity of an exchange in a cluster",
        "templates/device/cluster.cuh",
        "await_sent(arrival, side / 2);",
        "await_sent(arrival, 0);",
        "tests/codegen/test_clusters.py",
        "same_bits",
    ),
    Fault(
        "the parity of a pipeline",
        "templates/rows/pipeline.cu.jinja",
        "if (stage == 0) parity ^= 1;",
        "",
        "tests/codegen/test_rows_execution.py",
        "asked_for and bulk and sums",
    ),
    Fault(
        "a word of an earlier exchange is taken",
        "templates/device/peers.cuh",
        "return unsigned(word >> 32) == epoch;",
        "return word != 0;",
        "tests/runtime/test_words.py",
        "exchange_words and 2",
    ),
    Fault(
        "an exchange of words does not wait for the kernels ahead of it",
        "templates/ranks/peer_memory.cu",
        "    if constexpr (PROGRAMMATIC) programmatic_wait();",
        "",
        "tests/runtime/test_words.py",
        "in_its_memory and adding",
    ),
    Fault(
        "an exchange of words does not wait for peers",
        "templates/ranks/peer_memory.cu",
        "channel.await(words, first, THREADS);",
        "",
        "tests/runtime/test_words.py",
        "in_its_memory and adding",
    ),
    Fault(
        "what a rank of the node tells is taken by its number alone",
        "runtime/ranks/node.py",
        "<< 32 | crc32(told, self._epoch & 0xFFFFFFFF)",
        "<< 32",
        "tests/runtime/test_node.py",
        "before_its_tag",
    ),
]


@pytest.fixture(scope="session")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of its own, in which faults are planted. What was compiled of the sources comes along."""
    tree = tmp_path_factory.mktemp("planted")
    ignored = shutil.ignore_patterns("golden")
    for name in ("normgen", "tests", "specs"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tree)
    return tree


@pytest.mark.kernels
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_planted_fault_is_found(fault: Fault, copy: Path) -> None:
    find(fault, copy)


def find(fault: Fault, copy: Path) -> None:
    """Plant a fault in a tree: its tests fail."""
    path = copy / "normgen" / fault.file
    sound = path.read_text(encoding="utf-8")
    assert sound.count(fault.what) == 1, "the source has changed: plant the fault anew"
    path.write_text(sound.replace(fault.what, fault.instead), encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-B", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", fault.tests]
            + (["-k", fault.choice] if fault.choice else []),
            cwd=copy,
            # (without plugins, which take as long to import as the tests to run)
            env={**os.environ, "PYTHONPATH": str(copy), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
        )
    finally:
        path.write_text(sound, encoding="utf-8")
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout + done.stderr
