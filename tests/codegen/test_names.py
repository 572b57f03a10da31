"""No two things have one name in a kernel's text, whatever a spec calls operands, attrs, axes and lets."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from normgen.diagnostics import SpecError
from normgen.kernel.names import PREFIXES, RESERVED, Names
from normgen.package.operands import spelled
from tests.codegen.norms import Some
from tests.codegen.renaming import (
    MARK,
    Printed,
    blocks,
    defined,
    named_by_user,
    nested,
    printed,
    spec_of,
    words,
)
from tests.ir.specs import NAMES
from tests.sampling import sampled
from tests.strategies import well_typed_specs


def spelled_in(names: Names, text: str) -> str:
    return names.text(text, (), {}, Some()).rpartition("\n\n")[2].strip()


def test_names_give_way() -> None:
    """To words that mean something, and to what is made of other names."""
    for word in ("float", "threadIdx", "smem", "linux", "and", "row", "cudaError"):
        names = Names()
        symbol = names.take(word)
        assert spelled_in(names, f"smem[row] = {symbol};  // row") == f"smem[row] = {word}_;  // row"
    names = Names()
    pointer, x = names.take("x_ptr"), names.take("x")
    assert spelled_in(names, f"{pointer} + {x}_ptr[{x}]") == "x_ptr + x__ptr[x_]"
    small, large = names.take("wa"), names.take("wA")
    text = f"HAS_{small.upper()} ? {small} : HAS_{large.upper()} ? {large} : 0"
    assert spelled_in(names, text) == "HAS_WA ? wa : HAS_WA_ ? wA_ : 0"
    names = Names()  # members are no names
    mean, sums = names.take("mean"), names.take(f"{names.take('x')}_sum")
    assert spelled_in(names, f"{mean} = moments.mean; {sums}") == "mean = moments.mean; x_sum"


def test_blocks_beside_each_other_may_have_the_same_names() -> None:
    names = Names()
    first, second, outer = names.inner(), names.inner(), names.take("v")
    a, b = first.take("v"), second.take("v")
    deeper = first.inner().take("v")
    found = spelled_in(names, f"{outer}; {{ {a}; {{ {deeper}; }} }} {{ {b}; }}")
    assert found == "v; { v_; { v__; } } { v_; }"


def unlike_any_other(text: str, attrs: dict[str, object]) -> dict[str, str]:
    """New names for all that a spec names, which no text holds."""
    values, axes = named_by_user(defined(text, attrs, {}), text)
    names = {name: f"zq{k}z" for k, name in enumerate(values)}
    return names | {axis: f"ZQ{k}Z" for k, axis in enumerate(axes)}


def check_that_names_are_symbols(text: str, attrs: dict[str, object]) -> None:
    """Until names are spelled, no text has one that a user gave, but those of axes: and no other word looks
    like one of these."""
    texts = printed(defined(text, attrs, unlike_any_other(text, attrs)))
    assert texts
    of_axes = re.compile(rf"(?:at|size|from|{MARK}s\d+{MARK}_stride)_(?:ZQ\d+Z|rest)")
    for each in texts:
        for word in words(each.before):
            if not of_axes.fullmatch(word):
                assert not re.search(r"zq\d+z|ZQ\d+Z|_rest\b", word, re.IGNORECASE), word
                assert not re.match(r"(?:at|size|from)_[A-Z]", word), word
        assert MARK not in each.after


def check_that_names_differ(text: Printed) -> None:
    """Different words of a text are spelled differently, unless they lie in blocks beside each other."""
    before, after = text.before, text.after
    names = dict(zip(words(before), words(after), strict=True))
    fixed = {word for word in names if MARK not in word}
    assert all(names[word] == word for word in fixed)
    around = blocks(before)
    seen: dict[str, str] = {}
    for word in names.keys() - fixed:
        name = names[word]
        assert name not in fixed | RESERVED, (word, name)
        assert not name.startswith(PREFIXES) or re.search("__|_$", name), name
        if name in seen:
            met = any(nested(a, b) for a in around[word] for b in around[seen[name]])
            assert not met, (word, seen[name], name)
        seen[name] = word


def check_what_calls_define(text: Printed) -> None:
    """What a call defines before a text is not defined twice, and stands for the same operand there."""
    names = dict(zip(words(text.before), words(text.after), strict=True))
    fixed = {word for word in names if MARK not in word}
    owner: dict[str, str] = {}
    for tensor, symbol in text.symbols.items():
        for name in spelled(tensor, symbol).keys() & names.keys():
            assert owner.setdefault(names[name], tensor) == tensor, name
            assert names[name] not in fixed | RESERVED, name


def check(text: str, attrs: dict[str, object], chance: random.Random) -> None:
    """All that a spec names is a symbol until names are spelled, and may go by other names of its texts."""
    check_that_names_are_symbols(text, attrs)
    definition = defined(text, attrs, {})
    values, axes = named_by_user(definition, text)
    found = {word for each in printed(definition) for word in words(each.after)}
    lower, upper = (sorted(w for w in found if case(w[0])) for case in (str.islower, str.isupper))
    for _ in range(20):
        names = dict(zip(values, chance.sample(lower, len(values)), strict=True))
        names |= dict(zip(axes, chance.sample(upper, len(axes)), strict=True))
        try:
            renamed = defined(text, attrs, names)
        except SpecError:
            continue
        for each in printed(renamed):
            check_that_names_differ(each)
            check_what_calls_define(each)
        return
    pytest.fail("every naming was refused")


# What clashes, clashes in a template: a few specs have them all.
FEW = (
    "groupnorm_channels_last",
    "batchnorm_channels_last",
    "local_response_norm",
    "rmsnorm_fp8",
    "layernorm",
    "rmsnorm2d",
)


@pytest.mark.parametrize("turn", sampled(range(3), 0))
@pytest.mark.parametrize("name", sampled(NAMES, *map(NAMES.index, FEW)))
def test_bundled_specs(name: str, turn: int) -> None:
    check(*spec_of(name), random.Random(f"{name}{turn}"))


@settings(max_examples=6, deadline=None)
@given(well_typed_specs(), st.randoms(use_true_random=False))
def test_drawn_specs(text: str, chance: random.Random) -> None:
    check(text, {}, chance)
