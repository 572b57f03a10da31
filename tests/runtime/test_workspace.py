"""Scratch memory of calls: the norm's own, and the caller's. Nothing is computed here."""

from __future__ import annotations

from typing import Any

import pytest

from normgen.runtime.norm import Norm
from tests.runtime import stubs
from tests.runtime.calling import DY, RSTD, W, X, address, made, zeros
from tests.threads import at_once


def test_workspace_is_kept_for_each_thread_and_grows() -> None:
    norm, recorder = made()

    def scratch(x: Any, dy: Any) -> tuple[int, ...]:
        norm.backward(dy, x, W if x.shape[1] == 8 else zeros(x.shape[1]), RSTD)
        return tuple(recorder.last()["values"][-3:-1])

    first = scratch(X, DY)
    assert first == scratch(X, DY) and all(p % 256 == 0 for p in first) and len(set(first)) == 2
    (other,) = at_once(lambda: scratch(X, DY))
    assert not set(other) & set(first)
    larger = scratch(zeros(4, 4096), zeros(4, 4096))
    assert larger != first and scratch(X, DY)[0] == larger[0]


def test_workspace_may_come_from_the_caller() -> None:
    norm, recorder = made()
    told = norm.workspace("backward", {"...": 4, "D": 8}, sm_count=4)
    assert told == {"g.dw_sum": ((4, 8), "f32"), "g.db_sum": ((4, 8), "f32")}
    mine = {name: zeros(*shape) for name, (shape, _) in told.items()}
    norm.backward(DY, X, W, RSTD, workspace=mine)
    assert tuple(recorder.last()["values"][-3:-1]) == tuple(address(a) for a in mine.values())
    with pytest.raises(ValueError, match=r"workspace needs 'g\.db_sum': f32 of shape \(4, 8\)"):
        norm.backward(DY, X, W, RSTD, workspace={"g.dw_sum": mine["g.dw_sum"]})
    with pytest.raises(
        ValueError, match=r"workspace\['g\.dw_sum'\] must be contiguous f32 of shape \(4, 8\)"
    ):
        norm.backward(DY, X, W, RSTD, workspace=mine | {"g.dw_sum": zeros(3, 8)})
    with pytest.raises(ValueError, match="workspace: there is no 'more'; this call uses g"):
        norm.backward(DY, X, W, RSTD, workspace=mine | {"more": zeros(1)})
    with pytest.raises(ValueError, match=r"workspace\['g\.db_sum'\] overlaps workspace\['g\.dw_sum'\]"):
        norm.backward(DY, X, W, RSTD, workspace=dict.fromkeys(mine, mine["g.dw_sum"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sideways", {}), "has no direction 'sideways'"),
        (("backward", {"D": 8}), r"sizes: the length of \.\.\. is missing"),
        (("backward", {"D": 8, "...": 4, "E": 2}), "there is no axis 'E'; the axes are"),
        (("backward", {"D": 8, "...": 4}, "float32"), "'float32' is none of f32, f16, bf16"),
        (("backward", {"D": 8, "...": 4}, {"q": "f32"}), "there is no tensor 'q'"),
    ],
)
def test_questions_about_workspace_that_have_no_answer(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made()[0].workspace(*arguments)


def test_workspace_needs_no_device() -> None:
    norm = Norm(stubs.rows(), executors=pytest.fail, planner=stubs.plan)
    assert norm.workspace("backward", {"...": (2, 3), "D": 8}, {"x": "bf16"})["g.dw_sum"] == ((132, 8), "f32")
    assert norm.workspace("forward", {"...": 0, "D": 8}) == {}
