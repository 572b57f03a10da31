"""What kernels are given: operands, accumulators, parameters and texts, as plain frozen records."""

from __future__ import annotations

from dataclasses import dataclass

from normgen.package.constants import listing

_MEANINGS = {
    ("rows", ""): "rows",
    ("team", ""): "threads of a thread group in one block",
    ("members", ""): "blocks that share a row",
    ("blocks", ""): "blocks per segment of rows",
    ("words", ""): "scratch: bits by which blocks tell one another what is there",
    ("published", ""): "scratch: what blocks leave for one another",
    ("chunks", ""): "groups of neighbouring columns",
    ("chunks_per_group", ""): "groups of neighbouring columns along the innermost axis",
    ("count", "elements"): "elements of the array",
    ("count", "images"): "images that windows move over",
    ("count", "lanes"): "threads side by side along an image",
    ("count", "strips"): "thread groups, or blocks, side by side along an image",
    ("count", "ranges"): "ranges that share the steps of an image",
    ("count", "steps"): "steps of an image",
    ("count", "length"): "steps of a range",
    ("count", "size"): "elements of an image",
    ("count", "channels"): "channels of an image",
    ("count", ""): "words of bits in scratch memory",
}


def axis_name(axis: str) -> str:
    """How kernel text calls an axis: `...` is `rest`."""
    return "rest" if axis == "..." else axis


def element_of(identifier: str) -> str:
    """What a text calls the type of a tensor's elements."""
    return f"{identifier}_t"


@dataclass(frozen=True, slots=True)
class OperandRecord:
    """One tensor as a kernel sees it: which of the kernel's kept and inner axes index it, outermost first.

    `identifier` is its name in the CUDA text. `wanted_by`: the results for which it is read. `passes`: how
    often the streaming form reads each element.
    """

    tensor: str
    identifier: str
    kept: tuple[str, ...]
    inner: tuple[str, ...]
    wanted_by: tuple[str, ...] = ()
    passes: int = 1

    @property
    def given(self) -> tuple[str, ...]:
        """The identifiers that a launch may set for it in a text."""
        return self.there, self.wanted, self.one, self.run, self.element

    @property
    def element(self) -> str:
        """The type of its elements."""
        return element_of(self.identifier)

    @property
    def there(self) -> str:
        """Whether the call has it."""
        return f"HAS_{self.identifier.upper()}"

    @property
    def wanted(self) -> str:
        """Whether the call wants it."""
        return f"WANT_{self.identifier.upper()}"

    @property
    def one(self) -> str:
        """Whether a vector of the row needs one element of it."""
        return f"ONE_{self.identifier.upper()}"

    @property
    def run(self) -> str:
        """How many rows one access moves of it, where it lies the other way."""
        return f"VEC_{self.identifier.upper()}"


PARTIAL_VECTOR = 4  # floats: rows of partials of sums are whole vectors (partial_pitch)


@dataclass(frozen=True, slots=True)
class AccumulatorRecord:
    """An accumulator over rows, kept in registers and written as one partial per block. `wide`: a value for
    each element of the row. `op`: sum, max, min or moments. `part`: the outer axes of a row that it keeps:
    then every run of a row leaves a partial; or those of its pieces: then every block that has a part of a
    row does. `folded`: the innermost axes of a row, of whose elements a block
    leaves one value.

    A partial of moments holds, for a width of W values, W pivots, W residuals (mean = pivot + residual), W
    sums of squares about the mean, and the count of values that all of them share.
    """

    name: str
    kept: tuple[str, ...]
    wide: bool
    wanted_by: tuple[str, ...]
    op: str = "sum"
    part: tuple[str, ...] = ()
    folded: tuple[str, ...] = ()

    @property
    def registers(self) -> int:
        """How many values a thread keeps for each of its columns."""
        return 3 if self.op == "moments" else 1

    @property
    def gathered(self) -> int:
        """How many values of each column the thread groups of a block hand to one another."""
        return 4 if self.op == "moments" else 1

    def partial(self, length: int) -> int:
        """How many floats a block leaves for rows of this length, or of so many values in the end."""
        if self.op == "moments":
            return 3 * (length if self.wide else 1) + 1
        return -(-length // PARTIAL_VECTOR) * PARTIAL_VECTOR if self.wide and length > 1 else 1


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel parameter. `kind`: pointer (of tensor `name`), channel (the same, of what says how
    to reach other ranks), partial (of column sum `name`), stride (of
    tensor `name` along `axis`), size (of `axis`), scalar (float attr `name`), rows, team (threads
    of a thread group in one block), members (blocks that share a row), columns, blocks (per segment), words
    (of bits that tell blocks which share a row what is there) and their count, published (what is there).
    """

    kind: str
    name: str = ""
    axis: str = ""

    @property
    def meaning(self) -> str:
        """What it is, in a few words."""
        match self.kind:
            case "pointer":
                return f"address of {self.name}"
            case "channel":
                return f"address of {self.name}, by which ranks exchange"
            case "partial":
                return f"scratch: what blocks leave of {self.name}"
            case "stride":
                return f"elements of {self.name} from one step along {self.axis} to the next"
            case "size":
                return f"length of {self.axis}"
            case "scalar":
                return f"attr {self.name}"
        return _MEANINGS[self.kind, self.name]


@dataclass(frozen=True, slots=True)
class FormRecord:
    """One schedule's text of a kernel: registers, pipeline, multipass, ..., or what goes before it (clear)
    or after it (second_stage). It includes device functions, and lists the constants that it reads. `types`:
    of these the types of elements of tensors that the kernel does not touch, with the tensors.
    """

    form: str
    entry: str
    parameters: tuple[Parameter, ...]
    source: str
    types: tuple[tuple[str, str], ...] = ()

    @property
    def constants(self) -> tuple[str, ...]:
        """What a launch sets: of `CONSTANTS`, of operands (`OperandRecord.given`), and lengths of axes,
        `size_<axis>`."""
        return listing(self.source).names
