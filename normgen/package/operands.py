"""What kernels are given: operands, accumulators, parameters and texts, as plain frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from normgen.cache_results import Late

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


_ELEMENT = "_t"


def axis_name(axis: str) -> str:
    """How kernel text calls an axis: `...` is `rest`."""
    return "rest" if axis == "..." else axis


def element_of(identifier: str) -> str:
    """What a text calls the type of a tensor's elements."""
    return f"{identifier}{_ELEMENT}"


@dataclass(frozen=True, slots=True)
class OperandRecord:
    """One tensor as a kernel sees it: which of the kernel's kept and inner axes index it, outermost first.

    `wanted_by`: the results for which it is read. `passes`: how often the streaming form reads each element.
    Constants that are about it have other names in each text. A launch knows them by keys, in which a space
    keeps them apart from all names.
    """

    tensor: str
    kept: tuple[str, ...]
    inner: tuple[str, ...]
    wanted_by: tuple[str, ...] = ()
    passes: int = 1

    @property
    def there(self) -> str:
        """The constant that says whether the call has it."""
        return there_key(self.tensor)

    @property
    def wanted(self) -> str:
        """The constant that says whether the call wants it."""
        return wanted_key(self.tensor)

    @property
    def one(self) -> str:
        """The constant that says whether a vector of the row needs one element of it."""
        return f"ONE_ {self.tensor}"

    @property
    def run(self) -> str:
        """The constant that says how many rows one access moves of it, where it lies the other way."""
        return f"VEC_ {self.tensor}"


def there_key(tensor: str) -> str:
    """Whether a call has a tensor, among the constants of a launch."""
    return f"HAS_ {tensor}"


def wanted_key(tensor: str) -> str:
    """Whether a call wants a tensor, among the constants of a launch."""
    return f"WANT_ {tensor}"


def element_key(tensor: str) -> str:
    """The type of a tensor's elements, among the constants of a launch."""
    return f"{_ELEMENT} {tensor}"


def is_element_key(key: str) -> bool:
    """Whether a constant is the type of a tensor's elements."""
    return key.startswith(f"{_ELEMENT} ")


def spelled(tensor: str, identifier: str) -> Mapping[str, str]:
    """What a text calls the constants that are about a tensor, with the keys that a launch has for them."""
    names = {f"{prefix}{identifier.upper()}": f"{prefix} {tensor}" for prefix in ("ONE_", "VEC_")}
    return {**names, element_of(identifier): element_key(tensor)}


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
    or after it (second_stage). `text`: prints it for what a launch gives it."""

    form: str
    entry: str
    parameters: tuple[Parameter, ...]
    text: Late[str]
