"""Training steps of whole models with normgen's norms and with others', on one GPU, in one run.

    python bench/torch_models.py --out $OUT/models
    python bench/torch_models.py --out $OUT/models --models llama --variants eager,liger,normgen
    python bench/torch_models.py --out /tmp/models --small --device cpu

A step is forward, backward and optimizer. The variants of a model start from the same weights, and take turns
in rounds; a figure is the median of all steps. The share of norms is that of their forwards and backwards in
the time that the GPU computes, as the profiler attributes it, for variants that are not compiled. The peak of
memory is what a variant allocates beyond what was there before it. What is not installed, not applicable or
out of time is a dash, and the notes below the table say why. Models come from transformers, torchvision and
diffusers where these are installed; the table says what each was built of.

OUT/models.csv holds the rows.
"""

from __future__ import annotations

import argparse
import copy
import csv
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from commits import commit_of_tree
from torch_networks import SUBJECTS, Subject
from torch_profile import norm_share

import normgen.torch as nt

BUDGET = 230.0  # seconds for everything
COMPILING = 45.0  # seconds that have to be left where a model is to be compiled
NOT_COMPILED = 25.0  # seconds that are left to each model that comes later
WARM, ROUNDS, STEPS = 3, 3, 5
MIB = 2**20


def _liger(model: torch.nn.Module) -> torch.nn.Module:
    """Liger's RMSNorm in place of Llama's. Raises LookupError for models without."""
    found = [module for module in model.modules() if type(module).__name__ == "LlamaRMSNorm"]
    if not found:
        raise LookupError("Liger has no norm of this model")
    from liger_kernel.transformers.rms_norm import LigerRMSNorm

    for module in found:
        norm = LigerRMSNorm(module.weight.numel(), eps=module.variance_epsilon)
        module.__dict__.update({k: v for k, v in vars(norm).items() if not k.startswith("_")})
        module.__class__ = LigerRMSNorm
    return model


def _patched(fuse: bool = False) -> Callable[[torch.nn.Module], torch.nn.Module]:
    def build(model: torch.nn.Module) -> torch.nn.Module:
        report = nt.patch(model, fuse=fuse)
        if fuse and not report.fused:
            raise LookupError("no norm of this model stands beside what it is fused with")
        return model

    return build


@dataclass(frozen=True)
class Variant:
    """A way to run a model. `build`: changes the norms of a model in place."""

    name: str
    build: Callable[[torch.nn.Module], torch.nn.Module]
    mode: str = ""  # of torch.compile; none where the model is not compiled

    @property
    def compiled(self) -> bool:
        return bool(self.mode)


# In the order of their worth, for a run that is short of time.
VARIANTS = (
    Variant("eager", lambda model: model),
    Variant("normgen", _patched()),
    Variant("normgen fused", _patched(fuse=True)),
    Variant("liger", _liger),
    Variant("compile", lambda model: model, "default"),
    Variant("normgen compile", _patched(), "default"),
    Variant("normgen fused compile", _patched(fuse=True), "default"),
    Variant("reduce-overhead", lambda model: model, "reduce-overhead"),
    Variant("normgen reduce-overhead", _patched(), "reduce-overhead"),
)


@dataclass
class Runner:
    """A variant of a model that is ready, and what is known of it."""

    variant: str
    step: Callable[[], torch.Tensor]
    loss: float  # of the first step
    trained: float  # of the step after the warm ones, which shows gradients and states too
    memory: float  # MiB, the peak of a step
    share: float | None  # of norms in the time of the device
    times: list[float] = field(default_factory=list)  # ms


def prepare(subject: Subject, variant: Variant, device: str) -> Runner:
    """Build and warm a variant; its first loss, its peak of memory and its share of norms."""
    before = _allocated(device)
    model = variant.build(copy.deepcopy(subject.model)).train()
    run: Any = torch.compile(model, mode=variant.mode) if variant.compiled else model
    optimizer = _optimizer(subject.optimizer, model)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = subject.loss(run)
        loss.backward()
        optimizer.step()
        return loss.detach()

    first = float(step())
    for _ in range(WARM - 1):
        step()
    trained = float(step())
    peak = _peak(device, step) - before
    # Marks on norms keep blocks from fusing, and compilers from what they would do.
    plain = not variant.compiled and "fused" not in variant.name
    share = norm_share(model, step, device) if plain else None
    return Runner(variant.name, step, first, trained, peak / MIB, share)


def _optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=True)
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def _allocated(device: str) -> float:
    gc.collect()
    return float(torch.cuda.memory_allocated()) if device == "cuda" else 0.0


def _peak(device: str, step: Callable[[], Any]) -> float:
    if device != "cuda":
        step()
        return 0.0
    torch.cuda.reset_peak_memory_stats()
    step()
    return float(torch.cuda.max_memory_allocated())


def measure(runners: list[Runner], device: str, deadline: float) -> None:
    """Time steps of all variants in turn, in rounds, of which at least one is run."""
    for number in range(ROUNDS):
        if number and time.monotonic() > deadline:
            return
        for runner in runners:
            runner.step()
            runner.times += _timed(runner.step, device)


def _timed(step: Callable[[], Any], device: str) -> list[float]:
    """Milliseconds of each of some steps, one behind another."""
    if device != "cuda":
        begin = time.perf_counter()
        step()
        return [(time.perf_counter() - begin) * 1e3]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(STEPS + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(events)]


def run_model(name: str, variants: list[Variant], device: str, small: bool, deadline: float) -> Any:
    """The rows of one model, and why some of them have no figures."""
    subject = SUBJECTS[name](device, small)
    torch._dynamo.reset()
    runners, notes = {}, []
    for variant in variants:
        if time.monotonic() + (COMPILING if variant.compiled and not small else 0) > deadline:
            notes.append(f"{name}, {variant.name}: out of time (see --models, --variants and --budget)")
            continue
        try:
            runners[variant.name] = prepare(subject, variant, device)
        except Exception as error:  # one variant that fails is a dash, not the end of the others
            said = str(error).strip().splitlines() or [""]
            notes.append(f"{name}, {variant.name}: {type(error).__name__}: {said[0][:160]}")
    measure(list(runners.values()), device, deadline)
    rows = [_row(name, subject, variant, runners) for variant in variants]
    runners.clear()
    gc.collect()
    return rows, notes


def _row(name: str, subject: Subject, variant: Variant, runners: dict[str, Runner]) -> dict[str, str]:
    row = {
        "model": name,
        "built of": subject.source,
        "dtype": subject.dtype,
        "shape": subject.shape,
        "variant": variant.name,
    }
    runner, eager = runners.get(variant.name), runners.get("eager")
    if runner is None:
        return row
    middle = statistics.median(runner.times)
    row |= {
        "ms": f"{middle:.2f}",
        "spread ms": f"{max(runner.times) - min(runner.times):.2f}",
        "norms": "" if runner.share is None else f"{runner.share:.1%}",
        "peak MiB": f"{runner.memory:.0f}",
        "first loss": f"{runner.loss:.5f}",
        "trained loss": f"{runner.trained:.5f}",
    }
    if eager is not None:
        row["of eager"] = f"{middle / statistics.median(eager.times):.3f}"
    return row


COLUMNS = (
    "model",
    "built of",
    "dtype",
    "shape",
    "variant",
    "ms",
    "of eager",
    "spread ms",
    "norms",
    "peak MiB",
)
CHECKED = ("first loss", "trained loss")


def table(rows: list[dict[str, str]]) -> str:
    """The rows as text; a dash where there is no figure."""
    columns = (*COLUMNS[:1], *COLUMNS[4:], *CHECKED)
    cells = [columns, *([row.get(c) or "-" for c in columns] for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in lines)


def write(path: Path, rows: list[dict[str, str]], device: str) -> None:
    """The rows as CSV, each with its device, versions and commit."""
    card = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("device", *COLUMNS, *CHECKED, "torch", "commit"))
        for row in rows:
            cells = [row.get(column, "") for column in (*COLUMNS, *CHECKED)]
            writer.writerow([card, *cells, torch.__version__, commit_of_tree()])


def main() -> None:
    names = {variant.name: variant for variant in VARIANTS}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--models", default=",".join(SUBJECTS), help=f"of {', '.join(SUBJECTS)}")
    parser.add_argument("--variants", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for everything")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="tiny models, to see that all of it runs")
    options = parser.parse_args()
    models, variants = options.models.split(","), options.variants.split(",")
    for given, known, flag in ((models, SUBJECTS, "--models"), (variants, names, "--variants")):
        if unknown := sorted(set(given) - set(known)):
            parser.error(f"{flag}: no {', '.join(unknown)}: there are {', '.join(known)}")
    begin = time.monotonic()
    rows, notes = [], []
    for k, model in enumerate(models):
        deadline = begin + options.budget - NOT_COMPILED * (len(models) - k - 1)
        found, said = run_model(
            model, [names[each] for each in variants], options.device, options.small, deadline
        )
        rows += found
        notes += said
        print(f"{model}: {found[0]['built of']}, {found[0]['dtype']}, {found[0]['shape']}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    write(options.out / "models.csv", rows, options.device)
    print(table(rows), *notes, sep="\n")


if __name__ == "__main__":
    main()
