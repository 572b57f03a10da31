"""The schedules that a kernel of the rows family may have, in order of preference: form, team, vectors, ring.

The rules come from measurements on an H200 (bf16 unless said; fractions of a copy of the same bytes):

- Vectors of 16 bytes of the narrowest operand, as far as length, strides and addresses allow.
- Forward: one-shot grid with the row in registers. One reduction: 16 elements a thread (0.98 at 4096), a warp
  a row up to 512 columns. Moments or several reductions: a warp a row up to 1024, then 32 elements a thread,
  the fewest warps that keep two blocks a multiprocessor (0.98 at 4096, 0.93 at 8192, 0.96 at 16384).
- Column sums: persistent blocks, 16 elements a thread (8 of 4 bytes), a ring of 64 to 96 KB a multiprocessor
  (0.88 to 0.99 at 1024 to 8192), or small blocks with a part of a row each (`short_sums`: 0.92 to 0.98 with
  one sum). Any spill is decisive (0.34 with 480 bytes): a candidate's registers are estimated first.
- Column sums of more than 8192 columns: the same in a cluster of blocks, each with a slice of 8192 or 16384
  columns (0.94 to 0.68 at 16384 to 262144; one pass for each level reaches 0.34 to 0.07).
- Wider rows: re-read from the ring instead of kept in registers, then one pass over the row per level, from a
  copy in shared memory (0.94 at 32768) or from memory (0.68 to 0.91).
- Forward, long rows: with one exchange the registers of a cluster (0.96 to 0.97 to 65536); with exponentials
  those; with moments a ring, in one block (0.88 at 32768) or in clusters (see `_long`).
"""

from __future__ import annotations

from dataclasses import replace

from normgen.families.rows.launch.any_length import copies
from normgen.families.rows.launch.clusters import (
    clusters,
    full_rings,
    image_rows,
    light_rows,
    long_rings,
    pairs,
    rings_alone,
    skewed,
    whole_rows,
)
from normgen.families.rows.launch.one_shot import few_warps, light_blocks, one_shot, whole_blocks
from normgen.families.rows.launch.pieces import added_pieces
from normgen.families.rows.launch.rings import (
    dealt,
    narrow_rings,
    of_bytes,
    one_vector,
    rings,
    shifted_first,
    slanted,
    statistics,
    uneven,
)
from normgen.families.rows.launch.schedule import Schedule, Shape, is_deep
from normgen.families.rows.launch.slabs import slabs
from normgen.families.rows.launch.spread import spread_floats, spread_images, spread_rows
from normgen.families.rows.launch.sums import cluster_rings, fourths, short_sums, skewed_sums, wide_pair
from normgen.launching.machine import Machine

STAGED_VECTORS = 4096  # of a row, beyond which a single copy of one in shared memory is not enough
SKEWED_LENGTH = (
    98304  # beyond, one sum of 2-byte elements: 131072 columns 136 us, in registers 140; 65536 138 and 136
)
# Beyond, moments of 4-byte elements whose rows share weights: 65536 columns 275 us, in registers 291. Without
# weights registers have more room: 512 rows of 65536 68 us, skewed 71.
SKEWED_WHOLE = 49152
ALONE = 8192  # columns up to which, with sums over rows, one block does better than a cluster: 0.84, 0.78


def tiers(shape: Shape, device: Machine) -> list[list[Schedule]]:
    """Candidates in order of preference; those of one tier differ in how busy they keep the memory."""
    together = _each([*slabs(shape), *narrow_rings(shape)])
    if not shape.shifted:
        return [*together, *_tiers(shape, device)]
    wide = replace(shape, vector=shape.shifted, whole_words=False, spreads=False)
    shifted = [[replace(each, shifted=True) for each in tier] for tier in _tiers(wide, device)]
    return shifted if shape.splits else [*together, *shifted, *_tiers(shape, device)]


def _tiers(shape: Shape, device: Machine) -> list[list[Schedule]]:
    if shape.piece:
        return _each(added_pieces(shape, device))
    images = _each([*spread_images(shape, device), *image_rows(shape, device)])
    if shape.one_shot:
        narrow = shape.vector * shape.narrowest < 4  # elements one by one: 7 x 7 places 11.9 us, not 17
        short = one_shot(shape)
        held = [*images, *(_each(short) if narrow else [short]), *_each(whole_rows(shape, device))]
        return [*held, *_each(spread_rows(shape, device))]
    if not shape.columns:
        long = _each(_long(shape, device))
        short = [*whole_blocks(shape), *one_shot(shape)]
        # exponentials of 16384 columns in pairs of blocks: 0.97 of a copy, in one block 0.93
        crowded = shape.held and shape.length > ALONE and not shape.whole
        light = _each([*few_warps(shape), *light_blocks(shape), *light_rows(shape, device)])
        long = [*_each(spread_floats(shape, device)), *long]
        spread = _each(spread_rows(shape, device))
        return [*images, *long, short, *spread] if crowded else [*images, *light, short, *long, *spread]
    (first, second, rest), wide = rings(shape), cluster_rings(shape, device)
    if shape.length > ALONE:
        parts = fourths(shape, device)
        return _each([*parts, *skewed_sums(shape, device), *wide, *first, *second, *rest])
    if shape.vector == shape.shifted:
        return _each([*slanted(shape), *shifted_first(shape, device), *first, *second, *rest, *wide])
    ahead = [
        *statistics(shape),
        *of_bytes(shape, device),
        *one_vector(shape),
        *dealt(shape),
        *short_sums(shape, device),
        *wide_pair(shape, device),
    ]
    best = [*uneven(shape, device), *first, *pairs(shape, device), *second]
    return [*_each(ahead), best, *_each([*rest, *wide])]


def _each(found: list[Schedule]) -> list[list[Schedule]]:
    return [[schedule] for schedule in found]


def _long(shape: Shape, device: Machine) -> list[Schedule]:
    """For long rows of a kernel without sums over rows, in registers or a ring.

    None where rows are read once, or where passes over copies in shared memory do as well: with one exchange,
    0.95 to 0.97 of a copy, where rows are whole words. (Those that begin anywhere have no realigned vectors
    in such copies and would go by single elements.)
    With one exchange and with exponentials a cluster's registers do best. Moments pass over a row more often,
    and come through a ring: 0.85 of a copy at 65536 columns, in registers 0.76, but those of 4-byte elements
    0.95 in registers at 16384 and 0.91 at 32768, in a ring 0.90 and 0.83, and ahead of the row before
    (skewed) 0.92 at 65536 and 131072.
    """
    if not shape.rewalked:
        return []
    held = clusters(shape, device)
    if shape.moments:
        return _long_moments(shape, device, held)
    vectors = -(-shape.length // shape.vector)
    copied = copies(shape, device) > (1 if vectors > STAGED_VECTORS else 0)
    if copied and not is_deep(shape) and shape.whole_words:
        return []
    plain = shape.walked <= 2 and not shape.held and not shape.functions
    skew = skewed(shape, device) if plain and shape.length > SKEWED_LENGTH else []
    return [*skew, *full_rings(shape, device), *held, *rings_alone(shape), *long_rings(shape, device)]


def _long_moments(shape: Shape, device: Machine, held: list[Schedule]) -> list[Schedule]:
    rings = [*rings_alone(shape), *long_rings(shape, device)]
    whole = shape.streams == 1 and shape.of_floats and shape.shared
    crowded = rings and rings[0].cluster >= 8 and rings[0].items * shape.vector > 32
    ahead = whole and shape.length > SKEWED_WHOLE
    skew = skewed(shape, device) if (crowded or ahead) and not shape.functions else []
    brief = [s for s in held if shape.whole and s.cluster <= 8 and s.threads == 256]
    brief = [s for s in brief if s.items * shape.vector <= 32]
    return [*skew, *brief, *rings] if ahead else [*brief, *skew, *rings]
