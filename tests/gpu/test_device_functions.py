"""Device functions whose instructions on a GPU are not those of the host: the same bits on both."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from normgen.devices.cuda.executor import executor_of
from normgen.devices.host.executor import HostExecutor
from normgen.launching.launch import Buffer, Launch

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
THREADS = 256
# What each thread makes of a and b, of which every pair is there.
FUNCTIONS = {
    "maximum": "maximum(a, b)",
    "minimum": "minimum(a, b)",
    "round to bf16": "round_to<__nv_bfloat16>(a)",
    "round to half": "round_to<__half>(a)",
    "bf16 of one": "to_float(from_float<__nv_bfloat16>(a))",
    "half of one": "to_float(from_float<__half>(a))",
    "e4m3 of one": "to_float(from_float<__nv_fp8_e4m3>(a))",
    "e5m2 of one": "to_float(from_float<__nv_fp8_e5m2>(a))",
    "bf16 of two": "through<__nv_bfloat16, 2>(a, b)",
    "half of two": "through<__half, 2>(a, b)",
    "e4m3 of four": "through<__nv_fp8_e4m3, 4>(a, b)",
    "e5m2 of four": "through<__nv_fp8_e5m2, 4>(a, b)",
}
TEXT = """
template <class T, int N> __device__ __forceinline__ float through(float a, float b) {
    float values[N], back[N];
    for (int i = 0; i < N; ++i) values[i] = i % 2 ? b : a;
    unpack(pack<T>(values), back);
    return back[0] - back[N - 1];
}
extern "C" __global__ void probe(const float* x, float* y, int count) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count * count) return;
    const float a = x[at / count], b = x[at % count];
    y[at] = @FUNCTION@;
}
"""


def values() -> np.ndarray:
    """Ties of every type, the ends of ranges, subnormals, infinities, NaN, and what lies around them."""
    exact = [
        0.0,
        1.0,
        1.5,
        448.0,
        464.0,
        480.0,
        57344.0,
        61440.0,
        65504.0,
        65519.0,
        65520.0,
        3.3961775e38,
        3.4e38,
    ]
    exact += [2.0**-10, 2.0**-17, 2.0**-24, 2.0**-25, 2.0**-126, 2.0**-133, 2.0**-149, np.inf, np.nan]
    exact += [1 + 2.0**-k for k in (3, 4, 8, 9, 11, 12)] + [1 + 3 * 2.0**-k for k in (4, 5, 9, 10, 12, 13)]
    found = np.array(exact, np.float32)
    beside = np.concatenate(
        [found, np.nextafter(found, np.float32(np.inf)), np.nextafter(found, np.float32(0))]
    )
    return np.concatenate([beside, -beside])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_same_bits_as_on_the_host(name: str) -> None:
    text = TEXT.replace("@FUNCTION@", FUNCTIONS[name])
    x = values()
    count = len(x)
    launch = Launch(
        text, "probe", (-(-count * count // THREADS), 1, 1), (THREADS, 1, 1), 0, "PPi", (), (), ()
    )
    wanted = np.empty(count * count, np.float32)
    host = HostExecutor()
    buffers = (
        Buffer(x.ctypes.data, x.nbytes, 4, "read"),
        Buffer(wanted.ctypes.data, wanted.nbytes, 4, "write"),
    )
    packed = struct.pack("PPi", x.ctypes.data, wanted.ctypes.data, count)
    host.launch(host.function(text, "probe", 0), launch, packed, buffers, 0)
    there, made = torch.from_numpy(x).cuda(), torch.empty(count * count, device="cuda")
    device = executor_of(("cuda", 0))
    torch.cuda.synchronize()
    device.launch(
        device.function(text, "probe", 0),
        launch,
        struct.pack("PPi", there.data_ptr(), made.data_ptr(), count),
    )
    torch.cuda.synchronize()
    found = made.cpu().numpy()
    # (which NaN it is, is not said; nor which zero a maximum of two is)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    np.testing.assert_array_equal(found[~np.isnan(found)], wanted[~np.isnan(wanted)])
