"""Every loop of every kernel ends: it goes towards its end, by a step that is more than nothing.

Loops are found in the syntax trees of all device functions, of all templates as they are rendered, and of the
kernels of drawn calls. A loop is counted: one of its variables takes a step up to what its condition compares
it with, and nothing else changes that variable. A step that is known when a kernel is compiled is positive:
the kernels of drawn calls compile with an assertion in its place. Any other is made of `blocks_per_segment`,
which is positive in every launch. Loops that are not counted are in a table, with what ends them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from operator import itemgetter
from random import Random

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from normgen.devices.host.compile import check_syntax
from normgen.diagnostics import SpecError
from normgen.errors import TextFault
from normgen.launching.launch import Launch, parameters_of
from normgen.launching.machine import HOST_MACHINE
from normgen.package import device_functions
from normgen.runtime.planning.choose import alternatives, candidates
from tests.axis_specs import axis_specs
from tests.channel_specs import channel_specs
from tests.codegen.device_files import read_anew
from tests.codegen.norms import SMALL, bound, package_of
from tests.codegen.syntax import LOOPS, Node, field, parse, parts, text_of, walk
from tests.codegen.test_golden import FOLDER
from tests.planning.judged import DEVICES
from tests.strategies import COMPILED, well_typed_specs
from tests.verify.test_segments import ENDS, segments

MACHINES = (*DEVICES.values(), SMALL, HOST_MACHINE)
# Steps that are known when a kernel is launched, all of `blocks_per_segment` or of a grid.
OF_A_LAUNCH = {"blocks_per_segment", "index_t(blocks_per_segment) * (TEAMS * BATCH)", "step", "together"}
# What ends loops that are not counted.
OTHERWISE = {
    "(!has_arrived<false>(arrival, parity))": "the hardware, when all bytes that were asked for are there",
    "(!has_arrived<true>(arrival, parity))": "the hardware, when all bytes that peers send are there",
    "(exchange.away)": "the slice that the block began with, which it takes last",
    "!look(words, first, step); ++polls": "the patience of ranks",
    "!is_there(word = look_word(at)); ++polls": "the patience of ranks",
    "missing; ++member, missing >>= 1": "a word without bits",
    "teams > 1; teams -= teams / 2": "one group, since half of several is one at least",
    "chunk < chunks; chunk = TICKETS ? int(channel.take(shared)) : chunk + int(gridDim.x)": "the last ticket",
    "(clock64() - begin < cycles)": "the clock",
}
LENGTHS = (1, 1, 2, 3, 8, 33, 64, 200, 1000, 4096)
DRAWN = (
    (st.just(ENDS), 8),
    (segments().map(itemgetter(0)), 4),
    (channel_specs(), 2),
    (axis_specs(), 2),
    (well_typed_specs(), 2),
)
TOGETHER = 40  # kernels that are compiled in one go
STEP = """#ifndef NORMGEN_STEP
#define NORMGEN_STEP
template <auto STEP> struct NormgenStep {
    static_assert(STEP > 0, "a loop makes steps");
    static constexpr auto value = STEP;
};
#endif
"""


def told(loop: Node) -> str:
    """What is between the brackets of a loop, but for where it begins."""
    return "; ".join(
        " ".join(text_of(field(loop, part)).split()) for part in ("condition", "update") if field(loop, part)
    )


@cache
def loops(text: str) -> tuple[Node, ...]:
    return tuple(node for node in walk(parse(text)) if node.type in LOOPS)


def updates(loop: Node) -> Iterator[Node]:
    """The expressions that go on to the next turn."""
    found = [field(loop, "update")]
    for node in found:
        if node is not None and node.type == "comma_expression":
            found += parts(node)
        elif node is not None:
            yield node


def changed(node: Node) -> str:
    """The variable that an expression changes, if it is one that does."""
    name = {"assignment_expression": "left", "update_expression": "argument"}.get(node.type)
    return text_of(field(node, name)) if name else ""


def ends(condition: str, variable: str, signs: str) -> bool:
    """Whether a condition fails when a variable has gone far enough."""
    condition = re.sub(rf"\((?![^()]*\b{variable}\b)[^()]*\)", "()", condition)
    either = re.split(r" [?:] ", condition.partition(" ? ")[2] or condition)
    compares = re.compile(rf"(?=.*\b{variable}\b)[^<>=]*[{signs}]=? (?!.*\b{variable}\b)")
    return all(any(map(compares.match, each.split("&&"))) for each in either)


def counted(loop: Node) -> Iterator[tuple[Node, str]]:
    """The updates of a loop that bring it to an end, each with its operator."""
    condition, body = text_of(field(loop, "condition")), field(loop, "body")
    within = {changed(node) for node in walk(body)} if body else set()
    for node in updates(loop):
        variable, operator = changed(node), re.search(r"\+\+|--|[-+*/]=", text_of(node))
        if not operator or variable in {"", *within}:
            continue
        if ends(condition, variable, "<" if operator[0] in ("++", "+=", "*=") else ">"):
            yield node, operator[0]


def asserted(text: str) -> str:
    """A text that compiles only where all steps that are known by then are positive."""
    edits: list[tuple[Node, str]] = []
    for loop in (each for each in loops(text) if told(each) not in OTHERWISE):
        for node, operator in counted(loop):
            step = field(node, "right")
            if operator in ("*=", "/="):
                assert step is not None and text_of(step) == "2", told(loop)
                first = [n for n in walk(field(loop, "initializer") or loop) if n.type == "init_declarator"]
                step = field(first[0], "value") if operator == "*=" else None
            if step is not None and text_of(step) not in OF_A_LAUNCH:
                edits.append((step, f"NormgenStep<({text_of(step)})>::value"))
    for node, instead in sorted(edits, key=lambda edit: -edit[0].start_byte):
        text = text[: node.start_byte] + instead + text[node.end_byte :]
    return text


# ------------------------------------------------------------------------------------------------ the kernels


def launches(text: str, random: Random) -> Iterator[Launch]:
    """What a drawn call of a spec may launch: all that it would run, and a schedule of each form beside."""
    made, device = package_of(text), random.choice(MACHINES)
    sizes = {axis.name: axis.extent or random.choice(LENGTHS) for axis in made.axes}
    lengths = {"rest" if axis == "..." else axis: length for axis, length in sizes.items()}
    dtype = random.choice(("f32", "bf16"))
    for record in filter(None, (made.forward, made.backward)):
        binding = bound(record, dtype, **({"rest": 5} | lengths))
        for each in alternatives(record, binding, device):
            yield from each.plan.launches
            for offers in candidates(each.strategy, binding, device):
                of_forms = {
                    dict(offer.knobs).get("form"): offer for offer in random.sample(offers, len(offers))
                }
                for offer in of_forms.values():
                    yield from offer.lowered.launches


@cache
def drawn() -> tuple[Launch, ...]:
    """Launches with different texts, of specs of every kind."""
    found: dict[str, Launch] = {}
    for number, (specs, count) in enumerate(DRAWN):

        @seed(number)
        @given(specs, st.randoms(use_true_random=False))
        @settings(COMPILED, max_examples=count)
        def draw(text: str, random: Random) -> None:
            with suppress(SpecError):
                found.update((each.source, each) for each in launches(text, random))

        draw()
    return tuple(found.values())


def texts() -> dict[str, str]:
    """Device functions, kernels that are no templates, kernels of drawn calls, and the heads of the loops of
    templates."""
    files = sorted((*FOLDER.glob("device/**/*.cuh"), *FOLDER.glob("**/*.cu")))
    found = {str(path.relative_to(FOLDER)): path.read_text() for path in files}
    for path in FOLDER.glob("*/*.jinja"):
        text = re.sub(r"\{\{.*?\}\}", "x", path.read_text())
        heads = re.findall(r"\b(?:for|while) \((?:[^()]|\([^()]*\))*\)", text)
        found[path.name] = "".join(
            f"void f() {{ {head} {{}} }}\n" for head in heads if ";" in head or head[0] == "w"
        )
    bare = {re.sub(r"constexpr .* = .*;.*\n", "", each.source): each.entry for each in drawn()}
    return found | {f"{number} {entry}": text for number, (text, entry) in enumerate(bare.items())}


def test_every_loop_is_counted_or_ends_otherwise() -> None:
    seen = set()
    for where, text in texts().items():
        for loop in loops(text):
            seen.add(told(loop))
            assert any(counted(loop)) or told(loop) in OTHERWISE, f"{where}: {told(loop)}"
    assert seen >= OTHERWISE.keys()


def test_steps_of_drawn_calls_are_positive(monkeypatch: pytest.MonkeyPatch) -> None:
    read = device_functions.file_text
    read_anew(monkeypatch, lambda name: STEP + asserted(read(name)))
    found = drawn()
    for place in range(0, len(found), TOGETHER):
        some = {f"{each.entry}_{n}": each for n, each in enumerate(found[place : place + TOGETHER])}
        check_syntax({name: asserted(each.source).replace(each.entry, name) for name, each in some.items()})
    wrong = next(each for each in found if "TILE = 32;" in each.source and "LENGTH = 1;" in each.source)
    with pytest.raises(TextFault, match="static assertion failed"):
        check_syntax({wrong.entry: asserted(wrong.source).replace("TILE = 32;", "TILE = 128;")})


def test_steps_that_a_launch_sets_are_positive() -> None:
    found = [each for each in drawn() if re.search(r"int blocks_per_segment[,)]", each.source)]
    for each in found:
        names = parameters_of(each.source, each.entry, len(each.values))
        assert each.values[names.index("blocks_per_segment")] > 0, each.entry
    assert len(found) > 30
