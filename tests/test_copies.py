"""Norms, what they return, and functions of tensors: copied and pickled, in this process and for another."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import normgen

SPEC = """
norm copied
attr   eps >= 0 = 1e-6
input  x[..., D]
param  w[D] = 1
save   rstd[...] = rsqrt(mean[D](x^2) + eps)
output y[..., D] = x * rstd * w
output top[...] = max[D](x)
"""


NORMS = {"copied": (SPEC, {}), "groupnorm": ("groupnorm", {"groups": 2})}


def _copies(value):
    return copy.copy(value), copy.deepcopy(value), *(pickle.loads(pickle.dumps(value, p)) for p in (2, 5))


@pytest.mark.parametrize(("source", "attrs"), NORMS.values(), ids=NORMS)
def test_norms_are_copied_and_pickled(source, attrs):
    norm = normgen.load(source, **attrs)
    for made in _copies(norm):
        assert repr(made) == repr(norm) and made.package == norm.package
        assert made.forward_args == norm.forward_args
        assert made.reference.forward.__doc__ and type(made.reference) is type(norm.reference)


@pytest.mark.kernels
def test_a_copy_computes_the_same():
    norm, x = normgen.load(SPEC), np.random.default_rng(0).standard_normal((3, 8)).astype("f4")
    norm.reference.forward(x)  # what a reference remembers is not copied
    for made in _copies(norm):
        for one, other in zip(made.forward(x), norm.forward(x), strict=True):
            assert np.array_equal(one, other)
        assert np.array_equal(made.reference.forward(x).y, norm.reference.forward(x).y)


def test_a_norm_on_one_executor_says_that_it_is_not_pickled():
    from normgen.devices.host.executor import HostExecutor

    bound = normgen.load(SPEC).on(HostExecutor())
    assert copy.deepcopy(bound) is bound
    with pytest.raises(TypeError, match=r"^copied is bound to an executor"):
        pickle.dumps(bound)


def _results():
    norm = normgen.load(SPEC)
    x = np.ones((2, 8), "f4")
    yield norm.forward(x)
    yield norm.backward(x, np.ones(2, "f4"), x=x, rstd=norm.forward(x).rstd)
    yield norm.reference.forward(x)
    torch = pytest.importorskip("torch")
    import normgen.torch as nt

    yield nt.load(SPEC)(torch.ones(2, 8))
    yield nt.load(SPEC).with_saved(torch.ones(2, 8))
    yield nt.nn.QKNorm(4, elementwise_affine=False)(torch.ones(2, 8), torch.ones(2, 4))


@pytest.mark.kernels
def test_results_are_copied_and_pickled():
    for made in _results():
        for each in _copies(made):
            assert type(each) is type(made) and each._fields == made._fields
            for one, other in zip(each, made, strict=True):
                assert (one is None and other is None) or (one == other).all()


@pytest.mark.kernels
def test_another_process_reads_them(tmp_path):
    norm, x = normgen.load(SPEC), np.ones((2, 8), "f4")
    path = tmp_path / "norm.pickle"
    path.write_bytes(pickle.dumps((norm, norm.forward(x))))
    code = (
        "import pickle, sys; import numpy as np\n"
        f"norm, made = pickle.loads(open({str(path)!r}, 'rb').read())\n"
        "assert type(made).__name__ == 'CopiedForward' and made._fields == ('y', 'top', 'rstd')\n"
        "assert np.array_equal(norm.forward(np.ones((2, 8), 'f4')).y, made.y)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
