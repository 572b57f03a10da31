"""Header, JSON and module of every bundled spec say the same, and launch what planning launches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from normgen import bundled
from normgen.ahead.cases import Cases
from normgen.ahead.header import GRANULE, header_name, header_prefix, header_text
from normgen.ahead.interface import scalars
from normgen.ahead.made import made_package
from normgen.dtypes import DTYPES
from normgen.launching.launch import Launch, LaunchPlan
from normgen.package.records import PassRecord
from normgen.runtime.planning.made import plan_made
from tests.ahead import programs
from tests.ahead.agreement import Call, Shape, launcher, shapes
from tests.ahead.standalone import Launched
from tests.kinds import of_all

# Device functions in which blocks wait for one another.
WAITING = re.compile(r"\b(?:CooperativeRow|SegmentExchange|MomentsExchange)<")
STREAM = 0x77
SCRATCH = 1 << 46


def packed(plan: LaunchPlan, call: Call, scratch: dict[str, int]) -> list[Launched]:
    """What planning launches of a call, as one who launches it tells it."""
    return [
        Launched(
            sha256(each.source.encode()).hexdigest(),
            each.entry,
            each.grid,
            each.block,
            each.shared,
            each.cluster,
            each.programmatic,
            each.packed(call.arrays | scratch, call.attrs),
        )
        for each in plan.launches
    ]


def sizes_of(plan: LaunchPlan) -> dict[str, int]:
    """The bytes of each scratch array."""
    found = {}
    for name, shape, dtype in plan.workspace:
        found[name] = DTYPES[dtype].bytes
        for length in shape:
            found[name] *= length
    return found


def needed(cases: Cases) -> int:
    """How many multiprocessors a device must have: as many as planned for where a kernel has blocks wait."""
    waits = any(WAITING.search(text.source) for text in cases.kernels)
    return cases.device.multiprocessors if waits else 0


@pytest.mark.parametrize("name", of_all(bundled.names()))
def test_json_module_and_header_launch_what_planning_launches(
    name: str, library: Path, tmp_path: Path
) -> None:
    found = shapes(name)
    for shape in found:
        check_json(shape)
    check_header(found, library, tmp_path)
    # Its texts take a second: one of the shapes, in turns where none has larger clusters.
    in_turns = found[:: 1 - 2 * (bundled.names().index(name) % 2)]
    check_module(max(in_turns, key=largest_cluster))


def largest_cluster(shape: Shape) -> int:
    return max(text.cluster for cases in shape.every for text in cases.kernels)


def check_json(shape: Shape) -> None:
    """By what is in the JSON alone."""
    for cases, found in zip(shape.every, shape.calls, strict=True):
        standalone = launcher(cases)
        for call in found:
            plan = call.plan
            launches = standalone.launches(call.sizes, call.arrays, call.attrs)
            places = {array: address for array, (address, _) in standalone.scratch.items()}
            assert launches == packed(plan, call, places)
            assert {array: size for array, (_, size) in standalone.scratch.items()} == sizes_of(plan)
        assert standalone.needs_all_multiprocessors == needed(cases)
        for text, kernel in zip(cases.kernels, standalone.kernels, strict=True):
            dims = re.findall(r"__cluster_dims__\((\d+)", text.source)
            assert [*map(int, dims)] == [kernel["cluster"][0]] * (kernel["cluster"][0] > 1)
        roles = {each["role"]: each["access"] for each in standalone.kernels[0]["tensors"]}
        assert roles.get("gradient", "write") == "write", "nothing is added to what it holds"


def check_module(shape: Shape) -> None:
    """It refuses a device with fewer multiprocessors where blocks wait, and sums onto what results hold."""
    made = made_package(shape.package, shape.every, "normgen compile")
    for cases, found in zip(shape.every, shape.calls, strict=True):
        record: PassRecord = getattr(made, cases.direction.name)
        assert record.made is not None and record.made.multiprocessors == needed(cases)
        smaller = replace(cases.device, multiprocessors=cases.device.multiprocessors - 1)
        for call in found:
            plan = plan_made(record, record.made, call.binding, cases.device)
            assert [told(each) for each in plan.launches] == [told(each) for each in call.plan.launches]
            assert plan.workspace == call.plan.workspace
        if needed(cases):
            with pytest.raises(ValueError, match=f"it needs {needed(cases)} multiprocessors"):
                plan_made(record, record.made, call.binding, smaller)
        else:
            plan_made(record, record.made, call.binding, smaller)
        with pytest.raises(ValueError, match="this call differs in accumulate"):
            plan_made(record, record.made, replace(call.binding, accumulate=True), cases.device)


def told(launch: Launch) -> tuple[object, ...]:
    """A launch without its text, of which a module has a part."""
    known = replace(launch, text="", reads=(), writes=())
    return known, {*launch.reads}, {*launch.writes}


def check_header(found: tuple[Shape, ...], library: Path, folder: Path) -> None:
    """Over a library that refuses shared memory and clusters that were not asked for. It loads on a device
    with fewer multiprocessors where no block waits for another."""
    program = programs.compiled(written(found, folder), library, programs.LANGUAGES[:1], "-O0")[0]
    for place, shape in enumerate(found):
        device, every = shape.every[0].device, [call for some in shape.calls for call in some]
        expected = [each for call in every for each in launched(call)]
        for multiprocessors in (device.multiprocessors, device.multiprocessors - 1):
            machine = {"MAJOR": device.arch[3], "MULTIPROCESSORS": str(multiprocessors)}
            settings = {f"FAKE_CUDA_{variable}": value for variable, value in machine.items()}
            done, log = programs.run(program, str(place), **settings)
            assert done.returncode == 0, done.stderr
            if multiprocessors < max(map(needed, shape.every)):
                assert done.stdout == "720\n"  # CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
            else:
                assert done.stdout == "0\n" * (1 + len(every))
                assert programs.launches(log) == expected


def launched(call: Call) -> Iterator[programs.Launched]:
    """What the library should write down of a call."""
    plan, places, end = call.plan, {}, SCRATCH
    for array, size in sizes_of(plan).items():
        places[array] = end
        end += -(-size // GRANULE) * GRANULE
    for each in packed(plan, call, places):
        yield programs.Launched(
            each.entry, each.grid, each.block, each.shared, STREAM, each.packed, each.early
        )


def written(found: tuple[Shape, ...], folder: Path) -> Path:
    """A program that loads the header of one shape, and calls it."""
    lines, names = ["    int place = atoi(argv[1]);\n"], []
    for place, shape in enumerate(found):
        every, prefix = shape.every, header_prefix(shape.every)
        texts = [text for cases in every for text in cases.kernels]
        cubins = {text: b"fake cubin cluster %d;" % text.cluster for text in texts}
        name = f"shape{place}.{header_name(every)}"
        (folder / name).write_text(header_text(every, cubins, shape.package, ""))
        names.append(name)
        lines.append(f"    if (place == {place}) {{\n        {prefix} norm;\n        CUresult code;\n")
        lines.append(f'        printf("%d\\n", code = {prefix}_load(&norm));\n        if (code) return 0;\n')
        lines += [line(shape, prefix, call) for some in shape.calls for call in some]
        lines.append("    }\n")
    source = folder / "program.c"
    includes = "\n".join(["#include <stdlib.h>", *(f'#include "{each}"' for each in names)])
    begin = programs.BEGIN.format(includes=includes).replace("main(void)", "main(int argc, char **argv)")
    source.write_text(begin + "    if (argc < 2) return 1;\n" + "".join(lines) + programs.END)
    return source


def line(shape: Shape, prefix: str, call: Call) -> str:
    """A call in C."""
    cases = call.cases
    given = [hex(address) for address in call.arrays.values()]
    given += [hex(SCRATCH), hex(1 << 40)] if any(case.value.workspace for case in cases.cases) else []
    given += [str(call.lengths[axis]) for axis in cases.open]
    given += [f"{call.attrs[a.name]}f" for a in shape.package.attrs if a.name in scalars(cases)]
    arguments = ", ".join(["&norm", f"(CUstream){STREAM}", *given])
    return f'        printf("%d\\n", {prefix}_{cases.direction.name}({arguments}));\n'


def test_what_the_shapes_show() -> None:
    """Every way in which files may differ is there."""
    every = [cases for name in SHOWN for shape in shapes(name) for cases in shape.every]
    texts = [text for cases in every for text in cases.kernels]
    assert {1, 2, 8, 16} <= {text.cluster for text in texts}
    assert any(text.shared > 48 << 10 for text in texts) and not all(text.shared for text in texts)
    assert {True, False} == {bool(needed(cases)) for cases in every} == {text.programmatic for text in texts}
    # An argument that is larger than what is before it, so that there is a gap.
    assert any(re.search("[if][if]?(?=[Pq])", text.format) for text in texts)


SHOWN = ("batchnorm", "batchnorm_channels_last", "rmsnorm", "groupnorm", "add_rmsnorm")
