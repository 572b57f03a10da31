"""What processes check together of compiled programs with several exchanges: all make them in the same order,
however compilers order what does not depend on each other."""

from __future__ import annotations

import random

import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint

import normgen.torch as nt
from tests.torch.spreading import same

DRAWN = 5


def shuffling(seed):
    """A compiler that orders operators by chance, and leaves out what nobody uses."""
    chance = random.Random(seed)

    def compile_graph(module, _):
        graph = module.graph
        graph.eliminate_dead_code()
        left = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
        placed = {node for node in graph.nodes if node.op == "placeholder"}
        output = next(node for node in graph.nodes if node.op == "output")
        while left:
            node = chance.choice([each for each in left if placed.issuperset(each.all_input_nodes)])
            left.remove(node)
            placed.add(node)
            output.prepend(node)
        graph.lint()
        module.recompile()
        return make_boxed_func(module.forward)

    return aot_autograd(fw_compiler=compile_graph, partition_fn=min_cut_rematerialization_partition)


class Program:
    """Several norms whose axes are spread, sums of parts, and what is made of them: of two groups, with runs
    that differ, some of them empty. Some results are not used, and some calls are checkpointed."""

    def __init__(self, seed, checkpointed=True):
        chance, ranks = random.Random(seed), dist.get_world_size()
        groups = dist.group.WORLD, dist.new_group()
        load = (
            lambda group: nt.load("rmsnorm", shard={"D": group}),
            lambda group: nt.load("layernorm", shard={"D": group}),
            lambda group: nt.load("rmsnorm", partial={"x": group}),
        )
        self.calls, self.given = [], []
        for _ in range(chance.randint(2, 4)):
            kind = chance.randrange(3)
            runs = [chance.choice([0, 1, 7, 80, 300]) for _ in range(ranks)]
            runs[0] += not any(runs)
            runs = runs if kind < 2 else [16] * ranks
            norm = load[kind](chance.choice(groups))
            again = checkpointed and chance.random() < 0.3
            used = chance.random() < 0.8
            self.calls.append((norm, again, used))
            mine = torch.randn(4, sum(runs)).split(runs, 1)[dist.get_rank()] * chance.choice([1, 30])
            self.given.append(mine.clone().requires_grad_())
        self.outer = chance.sample(range(len(self.calls)), len(self.calls))
        self.dynamic = chance.random() < 0.5 and not any(again for _, again, _ in self.calls)

    def run(self, *given):
        found = []
        for (norm, again, _), x in zip(self.calls, given, strict=True):
            x = x.sin() + x
            found.append(checkpoint(norm, x, use_reentrant=False) if again else norm(x))
        return [found[k].sum(1) for k in self.outer if self.calls[k][2]] + [given[0].sum()]

    def both(self, run):
        made = run(*self.given)
        slopes = [torch.linspace(1, 2, each.numel()).view(each.shape) for each in made]
        return (*made, *torch.autograd.grad(made, self.given, slopes, allow_unused=True))

    def check(self, compiled):
        """Calls with gradients and without, beside those that are not compiled."""
        torch._dynamo.reset()
        want = self.both(self.run)
        for one, other in zip(self.both(compiled), want, strict=True):
            assert (one is None) == (other is None)
            if one is not None and one.numel():
                scale = max(1.0, float(other.detach().abs().max()))
                same(one / scale, other / scale, 1e-4)
        with torch.no_grad():
            for one, other in zip(compiled(*self.given), want[: len(self.outer)], strict=False):
                same(one, other, 1e-2)


def programs_that_are_compiled_keep_their_order():
    for seed in range(DRAWN):
        program = Program(seed)
        backend = shuffling(f"{seed} {dist.get_rank()}")
        program.check(torch.compile(program.run, fullgraph=True, dynamic=program.dynamic, backend=backend))


def programs_of_which_one_rank_is_compiled_keep_their_order():
    for seed in range(DRAWN):
        program = Program(seed, checkpointed=False)
        backend = shuffling(f"{seed}")
        compiled = torch.compile(program.run, fullgraph=True, dynamic=program.dynamic, backend=backend)
        program.check(program.run if dist.get_rank() == seed % 2 else compiled)


def inductor_keeps_the_order_of_a_program():
    """Of two calls, which it would order by the sizes on each rank."""
    norm = nt.load("rmsnorm", shard={"D": dist.group.WORLD})
    given = [torch.randn(64, 600).split(runs, 1)[dist.get_rank() % 2] for runs in ([500, 100], [100, 500])]

    def run(first, second):
        one, other = norm(first), norm(second)
        return other.sum(1), one.sum(1)

    for got, want in zip(torch.compile(run, fullgraph=True)(*given), run(*given), strict=True):
        same(got, want, 1e-4)


def calls_at_other_places_of_a_program_are_refused():
    """On all ranks, before anything is exchanged; and calls that are not compiled have no place."""
    norm, x = nt.load("rmsnorm", shard={"D": None}), torch.randn(3, 5)
    name, last = norm.ops.forward._schema.name.split("::")[1], dist.get_rank() == dist.get_world_size() - 1
    in_line, rest = getattr(torch.ops.normgen, f"{name}_in_line").default, (x, None, 1e-6, [True, False])
    want = norm(x)
    for place in (1, 2):
        torch.testing.assert_close(in_line(None, place, *rest)[0], want)
    try:
        in_line(None, 2 if last else 1, *rest)
    except RuntimeError as fault:
        told = (
            f"{dist.get_world_size() - 1} is at exchange 2 of a compiled graph and rank 0 at exchange 1, so"
        )
        assert told in str(fault), fault
    else:
        raise AssertionError("ranks at other places exchanged what they had")
    torch.testing.assert_close(norm(x) if last else in_line(None, 7, *rest)[0], want)


ORDER = (
    programs_that_are_compiled_keep_their_order,
    programs_of_which_one_rank_is_compiled_keep_their_order,
    inductor_keeps_the_order_of_a_program,
    calls_at_other_places_of_a_program_are_refused,
)
