"""Windows that are walked pixel by pixel: when, and their kernels on the checked host executor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from normgen.devices.host.executor import HostExecutor
from normgen.families.windows.launch import family as windows
from normgen.families.windows.launch.family import Windows
from normgen.families.windows.launch.pixels import staged_bytes
from normgen.families.windows.launch.schedule import WindowSchedule
from normgen.families.windows.launch.shape import shape_of
from normgen.families.windows.launch.space import made
from normgen.launching.call import Call
from normgen.runtime.norm import Norm
from normgen.verify.draw import Sample
from normgen.verify.expected import Subject
from tests.codegen.norms import H200, bound
from tests.codegen.windowing import LAST, WITHIN, case, kernel, subject, text
from tests.sampling import paired
from tests.verify.subjects import CHECKED, prove

AGAIN = text(keep="let")  # the backward has windows of windows
ODD = 55 * 55


def test_what_is_offered():
    def offered(spec: str, **lengths: int) -> set[str]:
        package = subject(spec).norm.package
        call = Call(bound(package.forward, "bf16", **lengths), H200)
        return {each.form for each in Windows().space(kernel(package, "forward"), call)}

    assert offered(text(), B=2, C=16, rest=ODD) == {"march", "pixels", "direct"}
    assert offered(text(LAST), B=2, C=16, rest=ODD) == {"span", "direct"}
    image = {"B": 2, "C": 2, "H": 55, "W": 55}
    assert "pixels" in offered(text(WITHIN, "H: -1 .. 1"), **image)
    assert "pixels" not in offered(text(WITHIN, "H: -1 .. 1, W: -1 .. 1"), **image)


def fresh(spec: str) -> Subject:
    """The norm with this form alone; none of its calls is prepared yet."""
    found = subject(spec, "pixels")
    return replace(found, norm=Norm(found.norm.package))


def taking(monkeypatch: pytest.MonkeyPatch, **shape: int) -> None:
    """Has pixels taken, in blocks and ranges of other sizes."""

    def pick(record, call) -> WindowSchedule:
        there = shape_of(record, call)
        s = next(s for s in made(record, there) if s.form == "pixels")
        s = replace(s, **shape)
        s = replace(s, ranges=-(-s.steps // s.length))
        return replace(s, shared=staged_bytes(there, s))

    monkeypatch.setattr(windows, "choose", pick)


@pytest.mark.parametrize(("dtype", "spec"), [("f32", text()), ("bf16", AGAIN)], ids=["f32", "bf16"])
def test_planes_and_channels_of_any_length(monkeypatch, spec, dtype):
    """Planes of part of a block and more; rows that begin at every element of a word; one chunk, a part of
    one, several; ranges."""
    for length, channels, planes in ((3, 11, (1, 7, 32, 33, 35, 65)), (40, 40, (33, 35)), (40, 1, (31,))):
        taking(monkeypatch, threads=32, chunk=8, length=length)
        for plane in planes:
            found = fresh(spec)
            sizes = {"B": 2, "C": channels, "rest": plane}
            prove(found, case(found, sizes, dtype), HostExecutor(), {"x": Sample("normal", 0.0, 3.0)})


def test_blocks_as_they_are_taken():
    found = subject(AGAIN, "pixels")
    prove(found, case(found, {"B": 1, "C": 5, "rest": ODD}, "bf16"))


@pytest.mark.parametrize(
    ("window", "chunk"), [("0 .. 3", 4), ("-2 .. 1", 8), ("-6 .. 2", 12), ("1 .. 2", 8), ("-12 .. 12", 12)]
)
def test_windows_of_any_reach(monkeypatch, window, chunk):
    taking(monkeypatch, threads=32, chunk=chunk, length=10)
    found = fresh(text(window=f"C: {window}", keep="save" if window == "-12 .. 12" else "let"))
    prove(found, case(found, {"B": 1, "C": 21, "rest": 37}))


@pytest.mark.parametrize(("offset", "pitch"), paired([1, 2, 3], ["", "padded"]))
def test_any_address(offset, pitch):
    found = subject(AGAIN, "pixels")
    prove(found, case(found, {"B": 3, "C": 9, "rest": 47}, "f16", offset=offset, pitch=pitch, given_out=True))


def test_the_same_bits_whatever_the_batch_and_the_ranges(monkeypatch):
    x, dy = np.random.default_rng(7).standard_normal((2, 3, 29, 35)).astype(np.float32)

    def run(images: slice, **shape: int) -> np.ndarray:
        taking(monkeypatch, **shape)
        norm = fresh(AGAIN).norm.on(CHECKED)
        given = {"x": x[images], "beta": 0.75}
        return np.stack([norm.forward(**given).y, norm.backward(dy=dy[images], **given).dx])

    whole = run(slice(3), threads=32, chunk=8, length=29)
    alone = run(slice(1, 2), threads=32, chunk=8, length=29)
    assert np.array_equal(alone[:, 0], whole[:, 1])
    for threads, chunk, length in ((32, 4, 10), (64, 12, 7), (32, 8, 1), (64, 8, 28)):
        assert np.array_equal(run(slice(3), threads=threads, chunk=chunk, length=length), whole)


def test_offsets_of_64_bits(monkeypatch):
    monkeypatch.setattr(windows, "INT_LIMIT", 0)
    found = fresh(AGAIN)
    prove(found, case(found, {"B": 2, "C": 9, "rest": 35}, "bf16"))


def test_nested_windows_that_no_march_unrolls_have_a_kernel_of_their_own():
    """Fifteen channels, and of each the sum of fifteen: in two kernels, of which none sums over rows."""
    found = subject(text(window="C: -7 .. 7", keep="let"))
    assert found.norm.package.backward.strategies
    prove(found, case(found, {"B": 2, "C": 18, "rest": 35}))
