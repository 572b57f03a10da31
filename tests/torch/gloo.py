"""Checks that several processes make together: on CPUs, by gloo, or on a GPU each, by NCCL.

python -m tests.torch.gloo MODULE RANK RANKS STORE writes to STORE.RANK, as JSON, what went wrong in each of
the module's CHECKS.
"""

from __future__ import annotations

import faulthandler
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.torch import host_transport

DEVICE = os.environ.get("NORMGEN_TEST_RANKS_ON", "cpu")
LONGEST = 3600  # seconds, however busy the machine is
SLOW = 1200  # seconds after which a check tells where it is (which Python 3.11 does not always survive)
# Peer memory needs no multicast; graphs of earlier runs may be those of other versions.
_ALONE = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
WORDS_ON_HOST = "NORMGEN_TEST_WORDS_ON_HOST"  # exchange tensors of CPUs by words, in files
needs_gloo = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo")


def faults(
    module: str, ranks: int, folder: Path, variables: Mapping[str, str] | None = None
) -> list[dict[str, str]]:
    """What went wrong in each check of a module, by process: nothing where all is well. `variables`: of the
    environment."""
    store = folder / "store"
    command = [sys.executable, "-m", "tests.torch.gloo", module]
    root = Path(__file__).parents[2]
    options = {"cwd": root, "env": {**_ALONE, **os.environ, **(variables or {})}}
    running = [subprocess.Popen([*command, str(k), str(ranks), str(store)], **options) for k in range(ranks)]
    try:
        assert [process.wait(LONGEST) for process in running] == [0] * ranks
    finally:
        for process in running:
            process.kill()
    return [json.loads(store.with_name(f"store.{k}").read_text()) for k in range(ranks)]


def main(module: str, rank: str, ranks: str, store: str) -> None:
    torch.set_num_threads(1)
    if os.environ.get(WORDS_ON_HOST):
        host_transport.register(Path(f"{store}.words"))
    if DEVICE == "cuda":
        torch.cuda.set_device(int(rank))
    torch.set_default_device(DEVICE)
    backend = "nccl" if DEVICE == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=int(rank), world_size=int(ranks))
    found = {}
    for check in import_module(module).CHECKS:
        torch.manual_seed(5)
        begun = time.perf_counter()
        faulthandler.dump_traceback_later(SLOW, repeat=True)
        try:
            check()
            found[check.__name__] = ""
        except Exception:
            found[check.__name__] = traceback.format_exc()
        dist.barrier()
        faulthandler.cancel_dump_traceback_later()
        outcome = "wrong" if found[check.__name__] else "right"
        print(f"rank {rank}: {check.__name__} {outcome}, {time.perf_counter() - begun:.1f} s", flush=True)
    Path(f"{store}.{rank}").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
