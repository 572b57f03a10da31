"""The identifiers of a kernel's texts, so that no two things in a text have one name.

While a text is written, whatever a user named, and every value of the kernel's own, is called by a symbol
that nothing else is called by. Names are made of it as of any other: `x_ptr`, `VEC_X`, `x_stride_D`. Once the
text is there, each symbol is spelled as its owner wanted, with underscores behind until everything that the
text makes of it is free: of the words of the templates, of axes, and of other symbols.

    names = Names()
    x = names.take("x")                     # a symbol
    source = f"const {x}_t* const {x}_row = {x}_ptr + row * {x}_stride_B;"
    text = names.text(source, (), {"x": x}, given)  # the same with names for symbols
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from normgen.kernel.folding import laid_out
from normgen.kernel.heads import headed
from normgen.package.constants import Constants
from normgen.package.operands import Parameter, spelled

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr
const_cast continue decltype default delete do double dynamic_cast else enum explicit export extern false
float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq
private protected public register reinterpret_cast restrict return short signed sizeof static static_assert
static_cast struct switch template this thread_local throw true try typedef typeid typename union unsigned
using virtual void volatile wchar_t while xor xor_eq char8_t char16_t char32_t concept consteval constinit
co_await co_return co_yield requires import module typeof
"""
# What the compilers, their libraries and CUDA's headers define before a text begins: macros, and types that
# the alias of an operand's element type would define again. Functions do no harm: what a text calls is one of
# its words.
_LIBRARY = """
alloca assert assert_perror be16toh be32toh be64toh blockDim blockIdx errno gridDim htobe16 htobe32 htobe64
htole16 htole32 htole64 i386 isalnum_l isalpha_l isascii isascii_l isblank_l iscntrl_l isdigit_l isfinite
isgraph_l isinf islower_l isnan isprint_l ispunct_l isspace_l issubnormal isupper_l isxdigit_l le16toh le32toh
le64toh linux major makedev math_errhandling minor offsetof rsqrt rsqrtf signbit stderr stdin stdout strdupa
strndupa threadIdx toascii toascii_l unix warpSize
base_int_t blkcnt64_t blkcnt_t blksize_t caddr_t clock_t clockid_t comparison_fn_t cookie_close_function_t
cookie_io_functions_t cookie_read_function_t cookie_seek_function_t cookie_write_function_t daddr_t dev_t
div_t double_t error_t float_t fpos64_t fpos_t fsblkcnt64_t fsblkcnt_t fsfilcnt64_t fsfilcnt_t fsid_t gid_t
id_t ino64_t ino_t int16_t int32_t int64_t int8_t int_fast16_t int_fast32_t int_fast64_t int_fast8_t
int_least16_t int_least32_t int_least64_t int_least8_t intmax_t intptr_t key_t ldiv_t libraryPropertyType_t
lldiv_t locale_t loff_t max_align_t mbstate_t mode_t nlink_t nullptr_t off64_t off_t pid_t pthread_attr_t
pthread_barrier_t pthread_barrierattr_t pthread_cond_t pthread_condattr_t pthread_key_t pthread_mutex_t
pthread_mutexattr_t pthread_once_t pthread_rwlock_t pthread_rwlockattr_t pthread_spinlock_t pthread_t
ptrdiff_t quad_t register_t sigset_t size_t ssize_t suseconds_t time_t timer_t u_int16_t u_int32_t u_int64_t
u_int8_t u_quad_t uid_t uint16_t uint32_t uint64_t uint8_t uint_fast16_t uint_fast32_t uint_fast64_t
uint_fast8_t uint_least16_t uint_least32_t uint_least64_t uint_least8_t uintmax_t uintptr_t useconds_t
wctrans_t wctype_t wint_t
"""
_OWN_TYPES = (
    "arrival_t index_t offset_t word_t"  # of the device functions, and of what a call defines before a text
)
RESERVED = frozenset(f"{_KEYWORDS} {_LIBRARY} {_OWN_TYPES}".split())
PREFIXES = ("cuda", "simt", "normgen")  # of what headers define, CUDA's and ours, none of it with `_` behind

# A symbol is a word, so that what is made of it is one too; a letter in it tells what was put in upper case.
_SYMBOL = re.compile(r"ꞏ([sS])(\d+)ꞏ")
_NO_CODE = re.compile(r'"(?:\\.|[^"\\\n])*"|//.*')
# Not what belongs to something else (`moments.mean`, `Layout::column`), and no number.
_WORD = re.compile(r"(?<![\w.])(?<!->)(?<!::)[^\W\d]\w*")


@dataclass(frozen=True, slots=True)
class _Owner:
    """Of a symbol: the name that it is to have, which may hold symbols that are older, and its block: the
    numbers of the nested blocks, the outermost first."""

    wanted: str
    block: tuple[int, ...]


class Names:
    """The symbols of a kernel, in the order of asking: who asks first keeps the name."""

    def __init__(self, claims: Mapping[str, str] | None = None) -> None:
        self._claims = dict(claims or {})
        self._owners: list[_Owner] = []
        self._block: tuple[int, ...] = ()
        self._blocks = [0]
        self._untouched: dict[str, str] = {}

    def inner(self, claims: Mapping[str, str] | None = None) -> Names:
        """The names of one text, or of a block of one: they differ from those here, not from those of other
        blocks. `claims`: symbols that are there already, for the first values that are to have these names.
        """
        names = Names(claims)
        names._owners, names._blocks = self._owners, self._blocks
        self._blocks[0] += 1
        names._block = (*self._block, self._blocks[0])
        return names

    def take(self, wanted: str) -> str:
        """A new symbol, to be spelled like this."""
        self._owners.append(_Owner(wanted, self._block))
        return f"ꞏs{len(self._owners) - 1}ꞏ"

    def take_untouched(self, tensor: str) -> str:
        """The symbol of a tensor of which the kernel knows the type of its elements, and no more."""
        self._untouched[tensor] = self.take(tensor)
        return self._untouched[tensor]

    def claim(self, wanted: str) -> str:
        """The symbol of a value that a user named: of the result of that name, or a new one."""
        return self._claims.pop(wanted, None) or self.take(wanted)

    def wanted(self, text: str) -> str:
        """A text with the names that its symbols are to have."""
        while "ꞏ" in text:
            text = _SYMBOL.sub(lambda found: self._owners[int(found[2])].wanted, text)
        return text

    def label(self, text: str, taken: Collection[str]) -> str:
        """What records call that which a text calls by these symbols; none of the names that are taken."""
        found = _clean(self.wanted(text))
        while found in taken:
            found += "_"
        return found

    def text(
        self, source: str, parameters: Iterable[Parameter], operands: Mapping[str, str], given: Constants
    ) -> str:
        """A text with its head, every symbol spelled, in full lines. `operands`: the symbols of tensors that
        the kernel touches; `given`: the constants of a launch."""
        # (the head before symbols are spelled, when what a user named looks like nothing else)
        symbols = {**operands, **self._untouched}
        keys = {name: key for each in symbols.items() for name, key in spelled(*each).items()}
        found = headed(source, parameters, keys, given)
        return laid_out(_expanded(found, self._spelled(found, keys)))

    def _spelled(self, source: str, given: Iterable[str]) -> list[str]:
        # every identifier of the text, and those that a call may add to it
        words = {*_WORD.findall(_NO_CODE.sub("", source)), *given}
        taken = RESERVED | {word for word in words if "ꞏ" not in word}
        # by its latest symbol, what a text makes of symbols
        order = sorted(range(len(self._owners)), key=lambda k: (len(self._owners[k].block), k))
        rank = {k: place for place, k in enumerate(order)}
        made = {k: {f"ꞏs{k}ꞏ"} for k in order}
        for word in words:
            if symbols := [int(number) for _, number in _SYMBOL.findall(word)]:
                made[max(symbols, key=rank.__getitem__)].add(word)
        names = [""] * len(order)
        used: dict[tuple[int, ...], set[str]] = {}

        def expanded(text: str) -> str:
            return _expanded(text, names)

        for k in order:
            owner = self._owners[k]
            near = [others for block, others in used.items() if _meet(block, owner.block)]
            names[k] = _clean(expanded(owner.wanted))
            while any(
                name in taken or any(name in others for others in near) for name in map(expanded, made[k])
            ):
                names[k] += "_"
            used.setdefault(owner.block, set()).update(map(expanded, made[k]))
        return names


def _expanded(text: str, names: list[str]) -> str:
    """A text with these names for its symbols."""
    return _SYMBOL.sub(lambda m: names[int(m[2])] if m[1] == "s" else names[int(m[2])].upper(), text)


def _meet(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether one of two blocks lies in the other."""
    shorter = min(len(a), len(b))
    return a[:shorter] == b[:shorter]


def _clean(wanted: str) -> str:
    name = "".join(c if c.isalnum() and c.isascii() else "_" for c in wanted).lstrip("_") or "value"
    return f"{name}_" if name.startswith(PREFIXES) else name
