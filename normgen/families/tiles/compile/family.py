"""The tiles family, as the compiler sees it: matrices in tiles, some of them turned in shared memory."""

from __future__ import annotations

from collections.abc import Sequence

from normgen.families.tiles.compile.emit import emit_tiles
from normgen.families.tiles.compile.plan import TilesPlan, plan_tiles
from normgen.ir.show import show
from normgen.kernel.family import CompileFamily
from normgen.kernel.plan import Operand
from normgen.kernel.show import operand_lines
from normgen.package.kernels import TilesRecord


class Tiles(CompileFamily[TilesPlan, TilesRecord]):
    """Elementwise kernels of tensors in two memory orders."""

    plans, kernels = TilesPlan, TilesRecord
    plan = staticmethod(plan_tiles)
    emit = staticmethod(emit_tiles)

    def show(self, plan: TilesPlan) -> str:
        lines = [
            f"kernel {plan.name}",
            f"  matrices of [{', '.join(plan.rows)}] by [{', '.join(plan.columns)}], in tiles",
        ]
        if plan.batch:
            lines.append(f"  [{', '.join(plan.batch)}] number the matrices")
        lines += operand_lines("reads", (Operand(o.tensor, o.kept, o.inner) for o in plan.operands))
        lines += [f"  writes {result.tensor.name} = {show(result.expr)}" for result in plan.results]
        turned = [o.tensor.name for o in (*plan.operands, *plan.targets) if o.inner == plan.rows]
        lines.append(f"  through shared memory {', '.join(turned)}")
        return "\n".join(lines) + "\n"

    def headers(self, kernels: Sequence[TilesRecord]) -> tuple[str, ...]:
        return ("tiles/tiles.cuh",)
