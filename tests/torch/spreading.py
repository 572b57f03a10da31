"""Calls of norms whose axes are spread over processes, beside the same call of one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.distributed as dist

import normgen.torch as nt
from normgen.diagnostics import SpecError
from normgen.launching.layout import solve
from tests.torch.drawing import Example, example


def runs_of(length, ranks):
    """The lengths of an axis on the ranks: the first has more, and of three or more another one none."""
    shares = [2.0, *[1.0] * (ranks - 1)]
    if ranks > 2:
        shares[ranks // 2] = 0.0
    ends = [round(length * sum(shares[: k + 1]) / sum(shares)) for k in range(ranks)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


CLOSE = 2e-5
EXACT = 1e-10


def same(got, want, tolerance=CLOSE):
    torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


CALLS_BEFORE = 3  # of what a graph is made of


def replay_late(step, replays, every):
    """Replays a graph of a step so often, after some calls of it; the rank is late by chance, in one of
    `every` replays."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())  # for what a step reads
    with torch.cuda.stream(aside):
        for _ in range(CALLS_BEFORE):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    late = torch.Generator("cpu").manual_seed(dist.get_rank())
    for replay in range(replays):
        if replay % every == 0:
            torch.cuda._sleep(int(torch.randint(0, 500_000, (), generator=late, device="cpu")))
        graph.replay()
    torch.cuda.synchronize()


def own_run(tensor, dim=-1):
    """This rank's run of a tensor."""
    runs = runs_of(tensor.shape[dim], dist.get_world_size())
    return tensor.detach().split(runs, dim)[dist.get_rank()].clone()


@dataclass(frozen=True)
class Spread:
    """An example, one axis of which is spread over all processes."""

    case: Example
    axis: str
    function: nt.NormFunction

    @cached_property
    def lengths(self):
        step = self.case.function.step
        shapes = zip(step.operands, self.case.tensors, strict=True)
        return solve([(step.direction.operands[n], tuple(t.shape)) for n, t in shapes], step.direction.axes)

    @cached_property
    def runs(self):
        return runs_of(self.lengths.axes[self.axis], dist.get_world_size())

    def own(self, record, tensor):
        """This rank's run of a tensor."""
        if self.axis not in record.axes:
            return tensor.detach().clone()
        axes = {"...": self.lengths.axes.get("..."), **self.lengths.axes}
        plain = tensor.reshape([axes[axis] for axis in record.axes])
        piece = plain.split(self.runs, record.axes.index(self.axis))[dist.get_rank()]
        own = {**axes, self.axis: piece.shape[record.axes.index(self.axis)]}
        shape = []
        for group in record.dims:
            if group == ("...",):
                shape += [own["..."]] if self.axis == "..." else self.lengths.rest
            else:
                shape.append(torch.Size([own[axis] for axis in group]).numel())
        return piece.reshape(shape).detach().clone()

    def check(self, tolerance, twice=True):
        """Outputs, gradients, states and second derivatives, beside those of one process."""
        case, step = self.case, self.case.function.step
        records, places = step.direction.operands, self.function.placements
        whole = case.required()
        mine = tuple(
            self.own(records[name], each).requires_grad_(each.requires_grad)
            for name, each in zip(step.operands, whole, strict=True)
        )
        want, got = case.call(*whole), Example(self.function, case.definition, mine, case.numbers).call(*mine)
        outputs = [step.direction.results[n] for n in step.outputs]
        outputs = [each for place, each in enumerate(outputs) if place not in step.constants]
        for record, a, b in zip(outputs, got, want, strict=True):
            self.same(record, places[record.name], a, b, tolerance)
        for name, a, b in zip(step.operands, mine, whole, strict=True):
            if name in step.updated:
                self.same(records[name], places[f"update:{name}"], a, b, tolerance)
        found = [(n, a, b) for n, a, b in zip(step.operands, mine, whole, strict=True) if b.requires_grad]
        if not found or not want:
            return
        cotangents = [torch.randn_like(each).requires_grad_() for each in want]
        own = [self.own(r, each).requires_grad_() for r, each in zip(outputs, cotangents, strict=True)]
        options = {"create_graph": twice, "allow_unused": True}
        a = torch.autograd.grad(got, [a for _, a, _ in found], own, **options)
        b = torch.autograd.grad(want, [b for _, _, b in found], cotangents, **options)
        for (name, _, _), one, other in zip(found, a, b, strict=True):
            assert (one is None) == (other is None), name
            if one is not None:
                self.same(records[name], places[f"d{name}"], one, other, tolerance)
        if twice:
            self._check_twice(found, a, b, (own, cotangents), tolerance)

    def _check_twice(self, found, a, b, cotangents, tolerance):
        records = self.case.function.step.direction.operands
        keep = [k for k, each in enumerate(b) if each is not None and each.requires_grad]
        if not keep:
            return
        above = [torch.randn_like(b[k]) for k in keep]
        own = [self.own(records[found[k][0]], each) for k, each in zip(keep, above, strict=True)]
        mine, whole = [a for _, a, _ in found], [b for _, _, b in found]
        got = torch.autograd.grad([a[k] for k in keep], mine, own, allow_unused=True)
        want = torch.autograd.grad([b[k] for k in keep], whole, above, allow_unused=True)
        second = self.function.step.derive().step.derive()
        for (name, _, _), one, other in zip(found, got, want, strict=True):
            if other is None:
                assert one is None or not one.any()
                continue
            above = second.gradients.get(name)  # else it came through an output that was kept
            places = self.function.placements if above is None else second.step.spread.placements
            self.same(records[name], places[above or f"d{name}"], one, other, tolerance)

    def same(self, record, placement, got, want, tolerance):
        """What the ranks have of a value, beside the value."""
        got, want = got.detach(), want.detach()
        if placement == "shard":
            want = self.own(record, want)
        elif placement == "part":
            got = got.double()
            dist.all_reduce(got)
            want = want.double()
        else:
            every = [torch.empty_like(got) for _ in range(dist.get_world_size())]
            dist.all_gather(every, got.contiguous())
            assert all(torch.equal(each, got) for each in every), f"{record.name} differs between ranks"
        assert got.shape == want.shape and got.dtype == want.dtype, record.name
        scale = max(1.0, float(want.abs().max())) if want.numel() else 1.0
        torch.testing.assert_close(got / scale, want / scale, atol=tolerance, rtol=tolerance, msg=record.name)


def spread_examples(variant, dtype):
    """The example of a variant, with each of its axes spread that can be."""
    drawn = example(variant, dtype, rows=5, width=9)
    case = replace(drawn, tensors=tuple(each.to(torch.get_default_device()) for each in drawn.tensors))
    spec, attrs = variant
    records = case.function.step.direction.operands.values()
    fixed = {axis.name for axis in case.function.step.direction.axes if axis.extent is not None}
    for axis in dict.fromkeys(axis for record in records for axis in record.axes if axis not in fixed):
        try:
            function = nt.load(spec, shard={axis: dist.group.WORLD}, **attrs)
        except SpecError:
            continue
        yield Spread(case, axis, function)
