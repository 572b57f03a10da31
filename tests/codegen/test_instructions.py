"""What the host never runs: the instructions that device functions are written as, read in PTX.

Each probe calls a function, and says by hand which instructions it must become. Every instruction that a file
of device functions writes is in some probe.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from normgen.devices.cuda.nvrtc import Nvrtc
from normgen.package.device_functions import file_text, files, inlined

# What a kernel with shared memory `smem` and arguments x, y, n and word does, and its instructions in order.
# Registers of 32 bits are R, those of 64 D.
PROBES: dict[str, tuple[str, tuple[str, ...]]] = {
    "wait": ("programmatic_wait();", ("griddepcontrol.wait;",)),
    "launch": ("programmatic_launch();", ("griddepcontrol.launch_dependents;",)),
    "tell": ("tell_word((tagged_t*)x, n);", ("st.relaxed.sys.global.b64 [D], D;",)),
    "look": ("y[0] = look_word((tagged_t*)x);", ("ld.relaxed.sys.global.b64 D, [D];",)),
    "clock": ("y[0] = nanoseconds();", ("mov.u64 D, %globaltimer;",)),
    "copy_16": ("async_copy<16>(smem, x);", ("cp.async.cg.shared.global.L2::128B [R], [D], 16;",)),
    "copy_8": ("async_copy<8>(smem, x);", ("cp.async.ca.shared.global [R], [D], 8;",)),
    "copy_4": ("async_copy<4>(smem, x);", ("cp.async.ca.shared.global [R], [D], 4;",)),
    "commit": ("async_commit();", ("cp.async.commit_group;",)),
    "wait_all": ("async_wait<0>();", ("cp.async.wait_group 0;",)),
    "wait_but_2": ("async_wait<2>();", ("cp.async.wait_group 2;",)),
    "open": (
        "open_arrivals((arrival_t*)smem, 1);",
        ("mbarrier.init.shared::cta.b64 [R], 1;", "fence.mbarrier_init.release.cluster;"),
    ),
    "expect": (
        "expect_bytes((arrival_t*)smem, n);",
        ("mbarrier.arrive.expect_tx.shared::cta.b64 _, [R], R;",),
    ),
    "arrived": (
        "y[0] = has_arrived<false>((arrival_t*)smem, n);",
        ("mbarrier.try_wait.parity.shared::cta.b64 complete, [R], R;", "selp.u32 R, 1, 0, complete;"),
    ),
    "arrived_in_cluste": (
        "y[0] = has_arrived<true>((arrival_t*)smem, n);",
        ("mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [R], R;",),
    ),
    "bulk": (
        "bulk_copy(smem, x, n, (arrival_t*)smem);",
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[R], [D], R, [R];",
        ),
    ),
    "bulk_with_hint": (
        "ClusterL2Hints<8>().copy(smem, x, n, (arrival_t*)smem, n, n);",
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[R], [D], R, [R], D;",
        ),
    ),
    "demote": (
        "ClusterL2Hints<8>::demote<32>(x, 32);",
        ("applypriority.global.L2::evict_normal [D], 128;",),
    ),
    "hint": (
        "*(uint4*)y = L2Hints<8, 128, 128>().load_word((const uint4*)x);",
        (
            "createpolicy.fractional.L2::evict_last.b64 D, 1.0;",
            "createpolicy.fractional.L2::evict_normal.b64 D, 1.0;",
            "ld.global.L2::cache_hint.v4.u32 {R, R, R, R}, [D], D;",
        ),
    ),
    "store_of_8": ("store_whole((uint2*)y, *(uint2*)smem);", ("st.global.v2.u32 [D], {R, R};",)),
    "store": ("store_word((uint4*)y, *(uint4*)smem);", ("st.global.v4.u32 [D], {R, R, R, R};",)),
    "store_first_out": (
        "store_word_first_out((uint4*)y, *(uint4*)smem);",
        ("st.global.cs.v4.u32 [D], {R, R, R, R};",),
    ),
    "rank": ("y[0] = cluster_rank();", ("mov.u32 R, %cluster_ctarank;",)),
    "arrive": ("cluster_arrive();", ("barrier.cluster.arrive.relaxed.aligned;",)),
    "meet": ("cluster_wait();", ("barrier.cluster.wait.acquire.aligned;",)),
    "there": ("y[0] = *in_block((float*)smem, n);", ("mapa.u64 D, D, R;",)),
    **{
        f"send_{count}": (
            f"float v[{count}]; for (float& each : v) each = x[n + (&each - v)]; "
            f"send_to_block(*(float(*)[{count}])smem, v, (arrival_t*)smem, n);",
            ("mapa.shared::cluster.u32 R, R, R;",) * 2
            + ((f"st.async.shared::cluster.mbarrier::complete_tx::bytes{kind}.f32 [R], {what}, [R];"),),
        )
        for count, kind, what in (
            (1, "", "R"), (2, ".v2", "{R, R}"),
            (4, ".v4", "{R, R, R, R}"),
        )
    },
    "set": ("set_bit(word, n);", ("red.release.gpu.global.or.b64 [D], D;",)),
    "read": ("word[1] = read_word(word);", ("ld.acquire.gpu.global.b64 D, [D];",)),
    "count": ("y[0] = count_one(word);", ("atom.release.gpu.global.add.u64 D, [D], 1;",)),
    "acquire": ("fence_acquire();", ("fence.acq_rel.gpu;",)),
    "maximum": ("y[0] = maximum(x[0], x[1]);", ("max.NaN.f32 R, R, R;",)),
    "minimum": ("y[0] = minimum(x[0], x[1]);", ("min.NaN.f32 R, R, R;",)),
    "reciprocal": ("y[0] = normal_reciprocal(x[0]);", ("rcp.approx.ftz.f32 R, R;",)),
    "root": ("y[0] = normal_root(x[0]);", ("sqrt.approx.ftz.f32 R, R;",)),
    "reciprocal_root": ("y[0] = normal_reciprocal_root(x[0]);", ("rsqrt.approx.ftz.f32 R, R;",)),
    "exponential": ("y[0] = exponential<true>(x[0]);", ("ex2.approx.ftz.f32 R, R;",)),
    "bf16": ("y[0] = round_to<__nv_bfloat16>(x[0]);", ("cvt.rn.bf16x2.f32 R, R, R;",)),
    "half": ("y[0] = round_to<__half>(x[0]);", ("cvt.rn.f16x2.f32 R, R, R;",)),
    "to_bf16": ("*(__nv_bfloat16*)y = from_float<__nv_bfloat16>(x[0]);", ("cvt.rn.bf16.f32 ",)),
    "to_half": ("*(__half*)y = from_float<__half>(x[0]);", ("cvt.rn.f16.f32 ",)),
    "to_fp8": ("*(__nv_fp8_e4m3*)y = from_float<__nv_fp8_e4m3>(x[0]);", ("cvt.rn.satfinite.e4m3x2.f32 ",)),
    "two": ("*(__half2*)y = Packed<__half>::of(x);", ("cvt.rn.f16x2.f32 ",)),
    "uppe": ("InWords<__nv_bfloat16>::unpack(*(unsigned*)x, y);", ("and.b32 R, R, 0xffff0000;",)),
    "fou": (
        "InWords<__nv_fp8_e4m3>::unpack(*(unsigned*)x, y);",
        (
            ".reg .b16 low, high;", "mov.b32 {low, high}, R;",
            "cvt.rn.f16x2.e4m3x2 R, low;", "cvt.rn.f16x2.e4m3x2 R, high;",
        ),
    ),
    "ask": ("StreamedRow<4, 100, true>::ask(x, n);", ("prefetch.global.L2 [D];",)),
}  # fmt: skip
WRITTEN = re.compile(r'asm(?: volatile)?\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)')


def plain(ptx: str) -> str:
    """PTX without the numbers of registers, and with blanks between words."""
    ptx = re.sub(r"[ \t]+", " ", ptx)
    return re.sub(
        r"%(rd|rs|r|f|p)\d+", lambda found: {"rd": "D", "rs": "H", "p": "P"}.get(found[1], "R"), ptx
    )


@cache
def compiled() -> dict[str, str]:
    """PTX of every probe."""
    body = "".join(
        f'extern "C" __global__ void probe_{name}(float* x, float* y, int n, unsigned long long* word) {{\n'
        f"extern __shared__ __align__(128) unsigned char smem[];\n{call}\n}}\n"
        for name, (call, _) in PROBES.items()
    )
    ptx = Nvrtc().build(inlined(body), "sm_90", "ptx").decode()
    return dict(re.findall(r"\.entry probe_(\w+)\((.*?)^}", plain(ptx), re.MULTILINE | re.DOTALL))


@pytest.mark.nvrtc
@pytest.mark.parametrize("name", PROBES)
def test_a_device_function_is_these_instructions(name: str) -> None:
    found = compiled()[name]
    for instruction in PROBES[name][1]:
        assert instruction in found
        found = found.partition(instruction)[2]
    if not PROBES[name][1]:
        assert "griddepcontrol" not in found


def written(file: str) -> set[str]:
    """The instructions that a file writes, without their operands."""
    found = set()
    for text in WRITTEN.findall(file_text(file)):
        lines = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', text)).replace("\\n", "\n").split("\n")
        found |= {line.strip("{} ").split(" ")[0].rstrip(";") for line in lines if line.strip("{} ")}
    return found - {".reg"}


def test_every_instruction_is_in_some_probe() -> None:
    probed = {each.split(" ")[0].rstrip(";") for _, expected in PROBES.values() for each in expected}
    everything = set().union(*map(written, files()))
    assert len(everything) > 30
    assert everything <= probed, everything - probed
