"""Norms of channels and heads of which ranks have runs: what a call takes, exchanges and returns."""

from __future__ import annotations

import numpy as np
import pytest

import normgen
from normgen.runtime.ranks.group import Simulated
from tests.runtime.test_ranks import CLOSE, cut, drawn, on_threads

pytestmark = pytest.mark.kernels


class Counting:
    """Ranks that count what they exchange."""

    def __init__(self, ranks):
        self.ranks, self.rank, self.size, self.count = ranks, ranks.rank, ranks.size, 0

    def gather(self, array):
        self.count += 1
        return self.ranks.gather(array)


@pytest.mark.parametrize(("runs", "exchanges"), [((6, 6), 1), ((9, 3), 2), ((7, 5), 2), ((0, 12), 2)])
def test_whole_groups_as_many_on_each_rank_are_not_exchanged(runs, exchanges):
    """But for the comparison before each call. Where runs straddle groups there is one exchange more."""
    x, plain = drawn(2, 12, 5), normgen.load("groupnorm", groups=4)

    def run(ranks):
        counting = Counting(ranks)
        norm = normgen.load("groupnorm", groups=4, shard={"(G C)": counting})
        return norm.forward(cut(x, runs, 1)[ranks.rank]), counting.count

    made, wanted = on_threads(2, run), plain.reference.forward(x)
    assert [count for _, count in made] == [exchanges] * 2
    for name, axis in (("y", 1), ("mu", 1), ("rstd", 1)):
        got = np.concatenate([getattr(each, name) for each, _ in made], axis)
        np.testing.assert_allclose(got, getattr(wanted, name), **CLOSE)
    assert [each.mu.shape for each, _ in made] == [(2, 2)] * 2, "ranks divide the groups"


@pytest.mark.parametrize(("runs", "exchanges"), [((12, 4), 1), ((16, 0), 1), ((9, 7), 2)])
def test_whole_heads_are_not_exchanged_however_many_each_rank_has(runs, exchanges):
    q, k, plain = drawn(3, 16), drawn(3, 8, seed=1), normgen.load("qk_norm", head_dim=4)

    def run(ranks):
        counting = Counting(ranks)
        norm = normgen.load("qk_norm", head_dim=4, shard={"(H D)": counting, "(K D)": counting})
        return norm(cut(q, runs)[ranks.rank], cut(k, (4, 4))[ranks.rank]), counting.count

    made, wanted = on_threads(2, run), plain.reference.forward(q, k)
    assert [count for _, count in made] == [exchanges] * 2
    np.testing.assert_allclose(np.concatenate([each.qn for each, _ in made], 1), wanted.qn, **CLOSE)
    np.testing.assert_allclose(np.concatenate([each.kn for each, _ in made], 1), wanted.kn, **CLOSE)


def test_statistics_of_groups_that_ranks_do_not_divide_are_whole():
    norm, runs, x = normgen.load("groupnorm", groups=3, shard={"(G C)": Simulated(2)}), (5, 4), drawn(2, 9, 4)
    made = norm.forward(cut(x, runs, 1))
    assert norm.placements["mu"] == "whole" and made.mu[0].shape == (2, 3)
    assert made.mu[0].tobytes() == made.mu[1].tobytes()


def test_statistics_of_heads_are_with_the_ranks_where_they_begin():
    """In as many places as runs have room for."""
    ranks = Simulated(3)
    norm = normgen.load("qk_norm", head_dim=4, shard={"(H D)": ranks, "(K D)": ranks})
    plain, q, k = normgen.load("qk_norm", head_dim=4), drawn(3, 16), drawn(3, 8, seed=1)
    made, wanted = norm.forward(cut(q, (5, 2, 9)), cut(k, (4, 4, 0))), plain.reference.forward(q, k)
    np.testing.assert_allclose(np.concatenate(made.qn, 1), wanted.qn, **CLOSE)
    np.testing.assert_allclose(np.concatenate(made.kn, 1), wanted.kn, **CLOSE)
    assert [each.shape for each in made.rq] == [(3, 2), (3, 1), (3, 3)]
    begun = np.concatenate([made.rq[0], made.rq[2][:, :2]], 1)
    np.testing.assert_allclose(begun, wanted.rq, **CLOSE)
    assert not made.rq[1].any() and not made.rq[2][:, 2].any()


def test_dimensions_of_other_numbers_of_groups():
    """Of which ranks divide one alone."""
    spec = (
        "norm t\naxis G = 2\naxis H = 3\ninput x[..., (G C)]\ninput z[..., (H E)]\n"
        "output y[..., (G C)] = x * rsqrt(mean[C](x^2))\noutput s[..., (H E)] = z * rsqrt(mean[E](z^2))\n"
        "output m[..., G] = max[C](x)\n"
    )
    ranks, x, z = Simulated(2), drawn(3, 8), drawn(3, 9, seed=1)
    norm = normgen.load(spec, shard={"(G C)": ranks, "(H E)": ranks})
    made, wanted = norm.forward(cut(x, (5, 3)), cut(z, (4, 5))), normgen.load(spec).reference.forward(x, z)
    for name in ("y", "s"):
        np.testing.assert_allclose(np.concatenate(getattr(made, name), 1), getattr(wanted, name), **CLOSE)
    assert norm.placements["m"] == "whole"
    np.testing.assert_allclose(made.m[0], wanted.m, **CLOSE)
    np.testing.assert_array_equal(made.m[0], made.m[1])


def test_gradients_of_what_all_heads_share_are_parts_or_whole():
    ranks, runs = Simulated(3), {"q": (5, 2, 9), "k": (4, 4, 0)}
    q, k, dq, dk = drawn(3, 16), drawn(3, 8, seed=1), drawn(3, 16, seed=2), drawn(3, 8, seed=3)
    plain, w = normgen.load("qk_norm", head_dim=4), np.ones(4, np.float32)
    for whole in ((), ("wq", "wk")):
        norm = normgen.load("qk_norm", head_dim=4, shard={"(H D)": ranks, "(K D)": ranks}, whole=whole)
        saved = norm.forward(cut(q, runs["q"]), cut(k, runs["k"]))
        given = {"dqn": cut(dq, runs["q"]), "dkn": cut(dk, runs["k"]), "wq": w, "wk": w}
        rest = {"q": cut(q, runs["q"]), "k": cut(k, runs["k"]), "rq": saved.rq, "rk": saved.rk}
        made = norm.backward(**given, **rest)
        want = plain.reference.forward(q, k)
        want = plain.reference.backward(dqn=dq, dkn=dk, q=q, k=k, wq=w, wk=w, rq=want.rq, rk=want.rk)
        for name in ("dwq", "dwk"):
            assert norm.placements[name] == ("whole" if whole else "part")
            got = getattr(made, name)
            np.testing.assert_allclose(
                got[0] if whole else np.sum(got, 0), getattr(want, name), rtol=1e-5, atol=1e-5
            )
            assert not whole or len({each.tobytes() for each in got}) == 1
        np.testing.assert_allclose(np.concatenate(made.dq, 1), want.dq, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "attrs", "dim", "runs", "said"),
    [
        (
            "groupnorm",
            {"groups": 3},
            "(G C)",
            (6, 4),
            "(G C) is 10 over all ranks (6+4), which is not a mult",
        ),
        ("groupnorm", {"groups": 2}, "(G C)", (6, 3), "(G C) is 9 over all ranks (6+3), which is not a mult"),
        ("groupnorm", {"groups": 2}, "(G C)", (0, 0), "(G C) is 0, but the norm reduces over"),
    ],
)
def test_runs_that_are_no_groups_are_refused_on_all_ranks(name, attrs, dim, runs, said):
    x = drawn(2, sum(runs), 3)

    def run(ranks):
        return normgen.load(name, **attrs, shard={dim: ranks}).forward(cut(x, runs, 1)[ranks.rank])

    made = on_threads(2, run)
    assert [type(each) for each in made] == [ValueError] * 2
    assert all(said in str(each) for each in made), made
