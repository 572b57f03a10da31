"""What a GPU runs of kernels that may start early: no access to memory before the wait, by the machine code.

ptxas moves loads of memory that nobody may write above the wait, whatever stands in PTX. So texts of every
form are compiled to machine code and taken apart by nvdisasm.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from normgen.devices.cuda.nvrtc import Nvrtc
from normgen.launching.launch import Launch
from normgen.package.device_functions import inlined
from normgen.runtime.planning.choose import candidates
from tests.codegen.norms import H200, packaged
from tests.covering import Call
from tests.fakes.machine import lacks
from tests.sampling import sampled

# Their kernels have every form of every family.
SPECS = (
    "layernorm", "add_rmsnorm", "softmax", "softmax2d", "batchnorm", "batchnorm_channels_last",
    "groupnorm_channels_last", "layernorm2d", "local_response_norm", "rmsnorm_fp8", "adaln_modulate",
)  # fmt: skip
# Calls with other forms.
CALLS = (
    Call("bf16", 7, 13), Call("f32", 4096, 64), Call("bf16", 333, 5), Call("f32", 65536, 8),
    Call("bf16", 4097, 300), Call("bf16", 262144, 4), Call("bf16", 4096, 9000), Call("f16", 1030, 16, 2),
)  # fmt: skip
CASES = [
    *(("sm_90", name) for name in SPECS),
    *((arch, name) for arch in ("sm_100", "sm_120") for name in ("layernorm", "batchnorm", "layernorm2d")),
]
MEMORY = re.compile(r"(LDG|STG|LDGSTS|UBLKCP|UBLKPF|ATOM|ATOMG|RED|REDG|LD|ST)(\.|$)")
OPERATION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
DISASSEMBLER = "nvdisasm"  # a part of the toolkit, and a wheel: nvidia-cuda-nvdisasm


def find_disassembler() -> str:
    """The path of nvdisasm, of a toolkit or of the wheel."""
    if found := shutil.which(DISASSEMBLER):
        return found
    wheels = (found for folder in sys.path for found in Path(folder).glob(f"nvidia/cu*/bin/{DISASSEMBLER}"))
    for path in wheels:
        if not os.access(path, os.X_OK):  # wheels come without that bit
            path.chmod(0o755)
        return str(path)
    lacks("what ptxas makes of the waits was not looked at: nvdisasm is missing")


def machine_code(source: str, arch: str, folder: Path) -> list[str]:
    """The operations of a text's kernel, in order."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(Nvrtc().build(inlined(source), arch, "cubin"))
    command = [find_disassembler(), "-c", str(cubin)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return OPERATION.findall(listing)


def faults_of(operations: list[str]) -> list[str]:
    """What a kernel that may start early must not do."""
    if "ACQBULK" not in operations:
        return ["never waits"]
    early = [each for each in operations[: operations.index("ACQBULK")] if MEMORY.match(each)]
    constant = [each for each in operations if each.startswith("LDG") and "CONSTANT" in each]
    return [f"{each} before the wait" for each in early] + [f"{each}: not coherent" for each in constant]


def every_form(name: str, arch: str) -> Iterator[Launch]:
    """A launch of each kernel of a spec in each of its forms, for one or the other call."""
    device = replace(H200, arch=arch, programmatic=True)
    made = packaged(name)
    found: set[str] = set()
    for direction in filter(None, (made.forward, made.backward)):
        for call in CALLS:
            bound = call.binding(made, direction)
            for strategy in direction.strategies:
                for offers in candidates(strategy, bound, device):
                    for offer in islice(offers, 40):
                        for launch in offer.lowered.launches:
                            if launch.entry not in found:
                                found.add(launch.entry)
                                yield launch


@pytest.mark.nvrtc
@pytest.mark.parametrize("case", sampled(CASES, SPECS.index("softmax2d")))
def test_no_form_touches_memory_before_it_has_waited(case: tuple[str, str], tmp_path: Path) -> None:
    find_disassembler()
    arch, name = case
    faults = {}
    for launch in every_form(name, arch):
        assert launch.programmatic
        faults[launch.entry] = faults_of(machine_code(launch.source, arch, tmp_path))
    assert faults and not {entry: found for entry, found in faults.items() if found}


def test_what_is_a_fault() -> None:
    sound = ["LDC.64", "ACQBULK", "LDG.E.128", "STG.E"]
    assert not faults_of(sound)
    assert faults_of(["LDG.E", *sound]) == ["LDG.E before the wait"]
    assert faults_of(["UBLKCP.S.G", *sound]) == ["UBLKCP.S.G before the wait"]
    assert faults_of([*sound, "LDG.E.CONSTANT"]) == ["LDG.E.CONSTANT: not coherent"]
    assert faults_of(["LDG.E"]) == ["never waits"]


@pytest.mark.nvrtc
def test_restricted_memory_is_found_in_the_machine_code(tmp_path: Path) -> None:
    text = """
extern "C" __global__ void early(const float* __restrict__ x, float* __restrict__ y) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    y[threadIdx.x] = x[threadIdx.x] + 1.f;
}
"""
    sound = text.replace("const float* __restrict__", "const float*")
    assert faults_of(machine_code(text, "sm_90", tmp_path)) == ["LDG.E.CONSTANT: not coherent"]
    assert not faults_of(machine_code(sound, "sm_90", tmp_path))
    assert faults_of(machine_code(sound.replace("griddepcontrol.wait;", ""), "sm_90", tmp_path))
