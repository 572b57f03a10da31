"""Names for the CUDA text: the user's own where C++ and CUDA allow, else with an underscore behind.

A value `x` comes with companions: `x_ptr`, `x_t`, `x_words`, ... so a name is free only if they are too.
"""

from __future__ import annotations

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr
const_cast continue decltype default delete do double dynamic_cast else enum explicit export extern false
float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr operator or or_eq
private protected public register reinterpret_cast restrict return short signed sizeof static static_assert
static_cast struct switch template this thread_local throw true try typedef typeid typename union unsigned
using virtual void volatile wchar_t while xor xor_eq char8_t char16_t char32_t concept consteval constinit
co_await co_return co_yield requires import module
"""
# Functions, types and macros that CUDA's, the compiler's or our own headers may define, in lower case.
_TAKEN = """
abs acos acosf assert atan atan2 blockDim blockIdx cbrt ceil clock cos cosf cosh div double2 double3
double4 dim3 erf
erfc erff errno exp exp2 expf expm1 fabs fabsf floor fma fmaf fmax fmaxf fmin fminf fmod free frexp gamma
gridDim half hypot i386 index int2 int3 int4 isfinite isinf isnan j0 j1 jn ldexp lgamma linux log log10 log2
logb logf longlong2 major malloc max memcpy memset min minor modf nan norm normf offsetof pow powf printf
remainder rint round rsqrt rsqrtf signbit sin sincos sinf sinh smem sqrt sqrtf stderr stdin stdout tan tanf
tanh tanhf tgamma threadIdx time trunc uint2 uint3 uint4 unix warpSize y0 y1 yn main square cube sigmoid
maximum minimum integer_power unpack unpack_or keep_packed pack load_vector store_vector store_word
load_scalar store_scalar to_float from_float round_to lanes_reduce warps_reduce elements_of_warp team_moments
async_copy async_commit async_wait index_t lane team row rows live candidate item column block step stage
first half exchange moments each visit fill look_ahead segment blocks_per_segment gather partial sum other i
scratch unit target result warp tile line lines down across columns
element elements image images lanes ranges steps length size thread last stop base slot slots place at load
place_of fetch fetch_apart span first_inside last_inside unpack_span keep_inside add_window add_to_windows
strips seat position complete own shared count until results arriving pitch
turn is_inside whole_address with_neighbours add_across keep_vector_inside nearest_inside
all_normal one_by_one raise_quarters_twice raise_twice
normal_quarter_power least
power quarter_power general_power normal_root normal_reciprocal normal_reciprocal_root raise_quarters
raise_all
if_finite merged merge_block merge_partials combine_partials add_partials load_partial
shuffle_down of_lane merge_lanes load_state next_row later_row set_all of_warps statistics outer
all parts inverse turned turned_back reduce_block merge_teams is_finite begin end chunk exponential
exponentials keep ask wrapped
shift_of move_down move_up
cut_out store_row add_stored in_row part turn part_of put_part
add_up slant slant_of slant_bits whole by_whole_parts
running ahead next start slice together units landed parity coming filled given gave again home splits passing
group member tiles warps row_of batch column_tiles row_tiles first_column first_row
pixel channel channels to inside asked seen
add_halves add_windows carry_on keep_channels_inside add_stored_rows
meeting table rows_from mine from zero words met
band room columns own totals factors add_teams fold_columns add_members read_factors summed_so_far clear_sums
"""
RESERVED = frozenset(_KEYWORDS.split()) | frozenset(_TAKEN.split())
_COMPANIONS = (
    "",
    "_ptr",
    "_t",
    "_words",
    "_packed",
    "_stride",
    "_image",
    "_ring",
    "_ring_t",
    "_out",
    "_sum",
    "_partial",
    "_index",
    "_lines",
    "_tile",
    "_batch",
    "_coming",
    "_rows",
    "_part",
    "_parts",
    "_places",
    "_slanted",
    "_slab",
)


class Names:
    """Hands out identifiers that are free, in the order of asking."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def take(self, wanted: str) -> str:
        """`wanted`, or with underscores behind it until it and its companions are free."""
        name = "".join(c if c.isalnum() and c.isascii() else "_" for c in wanted).lstrip("_") or "value"
        while any(name + c in RESERVED or name + c in self._used for c in _COMPANIONS) or name.startswith(
            "normgen"
        ):
            name += "_"
        self._used.update(name + c for c in _COMPANIONS)
        return name
