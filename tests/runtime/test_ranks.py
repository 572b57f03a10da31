"""Norms whose axes are spread over ranks, as calls: arrays, and what ranks say that do not agree."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

import normgen
from normgen.runtime.ranks.group import PeerFault, Simulated

BF16 = ml_dtypes.bfloat16
CLOSE = {"rtol": 2e-6, "atol": 2e-6}


def drawn(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def cut(array, lengths, axis=-1):
    return [np.ascontiguousarray(each) for each in np.split(array, np.cumsum(lengths)[:-1], axis)]


class Threads:
    """Ranks that are threads of this process: what a library for ranks offers, in a few lines."""

    def __init__(self, rank, size, shared):
        self.rank, self.size, self.shared = rank, size, shared

    def gather(self, array):
        arrays, barrier = self.shared
        arrays[self.rank] = np.array(array)
        barrier.wait(60)
        found = np.stack(arrays)
        barrier.wait(60)
        return found


def on_threads(size, run):
    """What `run(ranks)` returns or raises on each of so many ranks at once."""
    shared = [None] * size, threading.Barrier(size)

    def one(rank):
        try:
            return run(Threads(rank, size, shared))
        except Exception as fault:
            return fault

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


RUNS = (20, 0, 17)


@pytest.mark.kernels
def test_shards_of_rows_have_the_results_of_the_whole():
    """With a rank that has no elements; both directions; whole results in the same bits."""
    norm, plain = normgen.load("rmsnorm", shard={"D": Simulated(3)}), normgen.load("rmsnorm")
    x, w, dy = drawn(5, 37), drawn(37), drawn(5, 37, seed=1)
    wanted = plain.reference.forward(x, w)
    made = norm.forward(cut(x, RUNS), cut(w, RUNS))
    np.testing.assert_allclose(np.concatenate(made.y, 1), wanted.y, **CLOSE)
    assert [y.shape for y in made.y] == [(5, 20), (5, 0), (5, 17)]
    assert len({rstd.tobytes() for rstd in made.rstd}) == 1
    np.testing.assert_allclose(made.rstd[0], wanted.rstd, **CLOSE)
    gradients = norm.backward(dy=cut(dy, RUNS), x=cut(x, RUNS), w=cut(w, RUNS), rstd=made.rstd)
    wanted = plain.reference.backward(dy=dy, x=x, w=w, rstd=wanted.rstd)
    np.testing.assert_allclose(np.concatenate(gradients.dx, 1), wanted.dx, **CLOSE)
    np.testing.assert_allclose(np.concatenate(gradients.dw), wanted.dw, rtol=1e-5, atol=1e-5)
    assert norm.placements == {"rstd": "whole", "y": "shard", "dx": "shard", "dw": "shard"}


@pytest.mark.kernels
def test_a_batch_in_runs_updates_its_states_and_leaves_parts_of_gradients():
    norm, plain = normgen.load("batchnorm", shard={"B": Simulated(3)}), normgen.load("batchnorm")
    runs, x = (3, 0, 1), drawn(4, 6, 5) + 3
    mean, var = np.zeros(6, np.float32), np.ones(6, np.float32)
    means, variances = [mean.copy() for _ in runs], [var.copy() for _ in runs]
    y = norm(cut(x, runs, 0), running_mean=means, running_var=variances)
    wanted = plain.reference.forward(x, running_mean=mean, running_var=var)
    np.testing.assert_allclose(np.concatenate(y), wanted.y, **CLOSE)
    for states, want in ((means, wanted.new_running_mean), (variances, wanted.new_running_var)):
        assert len({state.tobytes() for state in states}) == 1
        np.testing.assert_allclose(states[0], want, **CLOSE)
    dy, w = drawn(4, 6, 5, seed=1), drawn(6)
    saved = {"mu": wanted.mu.astype(np.float32), "rstd": wanted.rstd.astype(np.float32)}
    made = norm.backward(dy=cut(dy, runs, 0), x=cut(x, runs, 0), w=w, **saved)
    want = plain.reference.backward(dy=dy, x=x, w=w, **saved)
    np.testing.assert_allclose(np.concatenate(made.dx), want.dx, rtol=1e-5, atol=1e-5)
    for name in ("dw", "db"):
        assert norm.placements[name] == "part"
        np.testing.assert_allclose(np.sum(getattr(made, name), 0), getattr(want, name), rtol=1e-5, atol=1e-5)
    assert not made.dw[1].any(), "the rank without samples adds nothing"


@pytest.mark.kernels
def test_what_is_made_of_a_state_has_its_value_before_the_update():
    spec = "norm t\ninput x[B, C]\nstate running[C] = 1\nupdate running = lerp(running, mean[B](x), 0.25)\n"
    norm = normgen.load(spec + "output y[B, C] = x - running", shard={"B": Simulated(2)})
    x, states = drawn(5, 3) + 1, [np.full(3, 2, np.float32) for _ in range(2)]
    y = norm(cut(x, (2, 3), 0), states)
    np.testing.assert_allclose(np.concatenate(y), x - 2, **CLOSE)
    np.testing.assert_allclose(states[1], 1.5 + 0.25 * x.mean(0), **CLOSE)


@pytest.mark.kernels
def test_a_gradient_that_does_not_vary_along_a_spread_axis_is_a_shard_of_it():
    spec = "norm t\ninput x[B, D]\nparam w[D]\noutput y[B, D] = w * mean[D](x)\ngrad y wrt x\n"
    norm, dy, w, x = normgen.load(spec, shard={"D": Simulated(3)}), drawn(2, 6), drawn(6), drawn(2, 6, seed=1)
    runs = (4, 0, 2)
    (dx,) = norm.backward(dy=cut(dy, runs), w=cut(w, runs), x=cut(x, runs))
    wanted = np.broadcast_to((w * dy).mean(1, keepdims=True), (2, 6))
    np.testing.assert_allclose(np.concatenate(dx, 1), wanted, **CLOSE)
    assert [each.shape for each in dx] == [(2, 4), (2, 0), (2, 2)] and norm.placements["dx"] == "shard"


@pytest.mark.kernels
def test_element_types_are_those_of_the_norm():
    norm = normgen.load("layernorm", shard={"D": Simulated(2)})
    x, w, dy = drawn(3, 9, dtype=BF16), drawn(9), drawn(3, 9, seed=2, dtype=BF16)
    runs = (4, 5)
    made = norm.forward(cut(x, runs), cut(w, runs), None)
    assert {y.dtype for y in made.y} == {np.dtype(BF16)} and {m.dtype for m in made.mu} == {np.dtype("f4")}
    gradients = norm.backward(
        dy=cut(dy, runs), x=cut(x, runs), w=cut(w, runs), mu=made.mu, rstd=made.rstd, dtypes={"b": "f16"}
    )
    assert [getattr(gradients, name)[0].dtype for name in ("dx", "dw", "db")] == [BF16, "f4", "f2"]


@pytest.mark.kernels
def test_gradients_that_nobody_wants_are_not_exchanged_for():
    norm = normgen.load("rmsnorm", shard={"...": Simulated(2)})
    x, w, dy, rstd = drawn(4, 8), drawn(8), drawn(4, 8, seed=1), np.ones(4, np.float32)
    made = norm.backward(dy=cut(dy, (3, 1), 0), x=cut(x, (3, 1), 0), w=w, rstd=cut(rstd, (3, 1)), wrt="w")
    assert made.dx is None
    np.testing.assert_allclose(np.sum(made.dw, 0), (dy * x).sum(0), **CLOSE)
    made = norm.backward(dy=None, x=cut(x, (3, 1), 0), w=w, rstd=cut(rstd, (3, 1)))
    assert not any(each.any() for each in (*made.dx, *made.dw))
    made = norm.backward(dy=cut(dy, (3, 1), 0), x=cut(x, (3, 1), 0), w=w, rstd=cut(rstd, (3, 1)), wrt=())
    assert made.dx is made.dw is None


@pytest.mark.kernels
def test_a_gradient_may_be_asked_for_whole():
    norm = normgen.load("rmsnorm", shard={"...": Simulated(3)}, whole=("w",))
    x, w, dy, rstd = drawn(7, 8), drawn(8), drawn(7, 8, seed=1), np.abs(drawn(7)) + 1
    runs = (4, 0, 3)
    made = norm.backward(dy=cut(dy, runs, 0), x=cut(x, runs, 0), w=w, rstd=cut(rstd, runs))
    assert norm.placements["dw"] == "whole" and len({dw.tobytes() for dw in made.dw}) == 1
    wanted = normgen.load("rmsnorm").reference.backward(dy=dy, x=x, w=w, rstd=rstd)
    np.testing.assert_allclose(made.dw[0], wanted.dw, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.concatenate(made.dx), wanted.dx, rtol=1e-5, atol=1e-5)


@pytest.mark.kernels
def test_attrs_are_numbers_of_a_call_and_saves_may_be_left_out():
    norm, x = normgen.load("rmsnorm", shard={"D": Simulated(2)}), drawn(2, 6)
    made = norm.forward(cut(x, (2, 4)), None, eps=0.5, save=False)
    assert made.rstd is None
    wanted = normgen.load("rmsnorm").reference.forward(x, eps=0.5)
    np.testing.assert_allclose(np.concatenate(made.y, 1), wanted.y, **CLOSE)


@pytest.mark.kernels
def test_any_object_that_gathers_is_ranks():
    x, w = drawn(5, 37), drawn(37)
    xs, ws = cut(x, RUNS), cut(w, RUNS)

    def run(ranks):
        return normgen.load("rmsnorm", shard={"D": ranks}).forward(xs[ranks.rank], ws[ranks.rank])

    made = on_threads(3, run)
    wanted = normgen.load("rmsnorm", shard={"D": Simulated(3)}).forward(xs, ws)
    for rank in range(3):
        np.testing.assert_array_equal(made[rank].y, wanted.y[rank])
        np.testing.assert_array_equal(made[rank].rstd, wanted.rstd[rank])


def shared(ranks, name="rmsnorm", rows=6, dtype=np.float32, w=True, wrt=None, direction="forward", **numbers):
    """A call of one rank of two, with what the other may have otherwise."""
    norm = normgen.load(name, shard={"D": ranks})
    arrays = {"x": drawn(rows, 4, dtype=dtype), "w": drawn(4) if w else None}
    if direction == "forward":
        return norm.forward(**arrays, **numbers)
    return norm.backward(dy=drawn(rows, 4), **arrays, rstd=np.ones(rows, np.float32), wrt=wrt)


SAME = "all ranks must make the same calls in the same order"
DIFFERENT = (
    ({"name": "layernorm"}, "rank 1 loads layernorm over D, rank 0 loads rmsnorm over D"),
    ({"rows": 7}, "rank 1 has 7 rows, rank 0 has 6 rows"),
    ({"dtype": np.float16}, "rank 1 has x in f16, rank 0 has x in f32"),
    ({"w": False}, "rank 1 passes x, rank 0 passes x, w"),
    ({"eps": 0.5}, "rank 1 has eps = 0.5, rank 0 has eps = 1e-06"),
    ({"direction": "backward"}, "rank 1 calls backward, rank 0 calls forward"),
)


@pytest.mark.parametrize(("other", "said"), DIFFERENT)
def test_ranks_that_make_other_calls_are_told_by_name(other, said):
    """On every rank, in place of a hang."""
    made = on_threads(2, lambda ranks: shared(ranks, **(other if ranks.rank else {})))
    assert [type(each) for each in made] == [ValueError, ValueError]
    assert {str(each) for each in made} == {f"{said}: {SAME}"}


def test_ranks_that_want_other_gradients_are_told_by_name():
    wants = ((None, "dx and dw"), ("w", "dw"))
    made = on_threads(2, lambda ranks: shared(ranks, direction="backward", wrt=wants[ranks.rank][0]))
    assert {str(each) for each in made} == {f"rank 1 asks for dw, rank 0 asks for dx and dw: {SAME}"}


def test_the_fault_of_one_rank_is_an_error_on_all():
    made = on_threads(2, lambda ranks: shared(ranks, dtype=np.float64 if ranks.rank else np.float32))
    assert [type(each) for each in made] == [PeerFault, TypeError]
    assert str(made[0]).startswith("rmsnorm over D: rank 1 could not make the call: x is float64")
    norm = normgen.load("rmsnorm", shard={"D": Simulated(2)})
    with pytest.raises(TypeError, match="x is float64"):
        norm.forward([drawn(6, 4), drawn(6, 4, dtype=np.float64)])


def test_an_axis_that_is_empty_on_all_ranks_is_refused():
    norm = normgen.load("rmsnorm", shard={"D": Simulated(2)})
    with pytest.raises(ValueError, match="D is 0, but the norm reduces over"):
        norm.forward([drawn(6, 0), drawn(6, 0)])
    made = norm.forward([drawn(0, 3), drawn(0, 2)])
    assert [y.shape for y in made.y] == [(0, 3), (0, 2)]


def test_a_gather_that_is_none_is_told():
    class Alone:
        rank, size = 0, 2

        def gather(self, array):
            return array

    with pytest.raises(ValueError, match="it must stack the arrays of all 2 ranks"):
        normgen.load("rmsnorm", shard={"D": Alone()}).forward(drawn(2, 3))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: normgen.load("rmsnorm", shard={}), "shard names no axis"),
        (lambda: normgen.load("rmsnorm", shard={"D": 4}), "D is sharded over a int: pass normgen.Simulated"),
        (lambda: Simulated(0), "at least 1, but got 0"),
        (lambda: normgen.load("rmsnorm", whole=("w",)), "whole= requires shard="),
        (
            lambda: normgen.load("rmsnorm", shard={"D": Simulated(2)}, whole=("b",)),
            "rmsnorm has no gradient with respect to 'b'; it has x, w",
        ),
        (lambda: two("batchnorm", "B").forward([drawn(2, 3, 4)] * 2, None, None, *states()), "contiguous"),
        (
            lambda: normgen.load("qk_norm", head_dim=4, shard={"H": Simulated(2), "K": Simulated(3)}),
            "H and K are sharded over different ranks",
        ),
        (lambda: two().forward([drawn(2, 3)]), "x has 1 array, but there are 2 ranks"),
        (lambda: two().forward([drawn(2, 3)] * 2, out={}), "unknown argument 'out'"),
        (
            lambda: two("batchnorm", "B").forward([drawn(2, 3, 4)] * 2, None, None, drawn(3)),
            "running_mean is upd",
        ),
        (lambda: two("rmsnorm_eps_outside").backward(), "needs x"),
    ],
)
def test_mistakes_are_said_in_a_line(call, said):
    with pytest.raises((TypeError, ValueError), match=said) as caught:
        call()
    assert "\n" not in str(caught.value)


def states():
    """Of each rank, states of which the second rank's are strided."""
    return ([np.ones(3, np.float32), np.ones((3, 2), np.float32)[:, 0]] for _ in range(2))


def two(name="rmsnorm", axis="D"):
    return normgen.load(name, shard={axis: normgen.Simulated(2)})


def test_a_norm_without_a_backward_says_so():
    spec = "norm t\ninput x[..., D]\noutput q[..., D]: f8e4m3 = x * rsqrt(mean[D](x^2))\n"
    norm = normgen.load(spec, shard={"D": Simulated(2)})
    assert repr(norm) == "<t with D sharded over 2 ranks>"
    with pytest.raises(ValueError, match="t has no backward"):
        norm.backward()
