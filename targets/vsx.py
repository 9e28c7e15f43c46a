"""Power ISA's vectors of 128 bits: f32, f64, s32, s64, and factors in groups of 32 bits.

The spellings are for little-endian systems: element 0 has the lowest address.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.isa.vector import Mask, MulAdd, Numbers, Vector
from tilewright.spec.types import other_sign

from .scalar import whole, wide
from .stored import by_fields, fields, in_memory, table

#: For each element type: the C type of a vector, the C type of an element, the bytes of an element.
_TYPES = {
    "f32": ("__vector float", "float", 4),
    "f64": ("__vector double", "double", 8),
    "s32": ("__vector signed int", "int32_t", 4),
    "s64": ("__vector signed long long", "long long", 8),
    "s16": ("__vector signed short", "int16_t", 2),
    "s8": ("__vector signed char", "int8_t", 1),
    "u8": ("__vector unsigned char", "uint8_t", 1),
    "bf16": ("__vector unsigned short", "uint16_t", 2),
    "f16": ("__vector unsigned short", "uint16_t", 2),
}
_U16, _S16, _S8, _U8 = (
    f"__vector {sign} {size}"
    for sign, size in (
        ("unsigned", "short"),
        ("signed", "short"),
        ("signed", "char"),
        ("unsigned", "char"),
    )
)
_S32, _U32, _F32 = "__vector signed int", "__vector unsigned int", "__vector float"
_S64, _U64 = "__vector signed long long", "__vector unsigned long long"


def _bits(size: int, seen: str) -> str:
    """Return C that loads 16, 32 or 64 bits from ``{p}`` into the beginning of a vector.

    The address need not be aligned.
    """
    ctype = {16: "unsigned short", 32: "unsigned int", 64: "unsigned long long"}[size]
    read = f"{ctype} bits_; __builtin_memcpy(&bits_, {{p}}, sizeof bits_);"
    return f"({seen})vec_splats(({{{{ {read} bits_; }}}}))"


def _write(size: int, v: str) -> str:
    """Return C that writes the first 32 or 64 bits of a vector to ``{p}``."""
    seen = _U32 if size == 32 else _U64
    value = f"const uint{size}_t bits_ = vec_extract(({seen}){v}, 0);"
    return f"({{{{ {value} (void)__builtin_memcpy({{p}}, &bits_, sizeof bits_); }}}})"


#: C that loads or stores the first ``{bytes}`` bytes of a vector. ``{held}`` is the C type of an
#: element.
_ACCESS = {
    "load": "({ctype})vec_xl_len(({held} *)({{p}}), {bytes})",
    "store": "vec_xst_len({{v}}, ({held} *)({{p}}), {bytes})",
}


def _mask(element: str) -> Mask:
    """Return loads and stores of the first elements; their number is known only at run time."""
    ctype, held, size = _TYPES[element]
    load, store = _ACCESS["load"], _ACCESS["store"]
    return Mask(
        ctype="uint64_t",
        make=f"(uint64_t)({{count}}) * {size}",
        load=load.format(ctype=ctype, held=held, bytes="{mask}"),
        store=store.format(held=held, bytes="{mask}"),
        registers=0,
    )


def _fill(element: str) -> str:
    """Return C for the active lanes of ``{v}``, and the other lanes of ``{other}``."""
    small = _TYPES[element][2] == 4
    places, ctype, held = ("0, 4, 8, 12", _S32, "int32_t") if small else ("0, 8", _S64, "long long")
    active = f"vec_cmplt((({ctype}){{{{{places}}}}}), vec_splats(({held})({{mask}})))"
    return f"vec_sel({{other}}, {{v}}, {active})"


def _parts(element: str, access: str) -> dict[int, str]:
    """Return loads or stores (``access``) of the first elements, by their constant number."""
    ctype, held, size = _TYPES[element]
    counts = range(1, 16 // size)
    return {n: _ACCESS[access].format(ctype=ctype, held=held, bytes=n * size) for n in counts}


def _vector(element: str, **more: object) -> Vector:
    ctype = _TYPES[element][0]
    known = Vector(
        name="vsx",
        element=element,
        lanes=16 // _TYPES[element][2],
        ctype=ctype,
        zero=f"({ctype})vec_splats(0)" if element != "f64" else "vec_splats(0.0)",
        load="vec_xl(0, {p})",
        store="vec_xst({v}, 0, {p})",
        broadcast="vec_splats(*({p}))",
        splat="vec_splats({x})",
        mask=_mask(element),
        fill=_fill(element) if _TYPES[element][2] > 2 else "",
        first="vec_extract({v}, 0)",
        partial_load=_parts(element, "load"),
        partial_store=_parts(element, "store"),
    )
    return replace(known, **more)  # type: ignore[arg-type]  # fields by name


# --- floating point -----------------------------------------------------------------------

_FLOAT_OPS = {
    "add": "vec_add({x}, {y})",
    "sub": "vec_sub({x}, {y})",
    "mul": "vec_mul({x}, {y})",
    "div": "vec_div({x}, {y})",
    "sqrt": "vec_sqrt({x})",
    "min": "vec_sel({y}, {x}, vec_cmplt({x}, {y}))",
    "max": "vec_sel({y}, {x}, vec_cmpgt({x}, {y}))",
    "abs": "vec_abs({x})",
    "neg": "vec_neg({x})",
    "fma": "vec_madd({x}, {y}, {z})",
    "round": "vec_rint({x})",
}


def _tests(mask: str, bits: str) -> dict[str, str]:
    """Return comparisons with results of C type ``mask``, and a selection by such a result.

    ``bits`` is the C type as which the selection reads the result.
    """
    found = {op: f"({mask})vec_cmp{op}({{x}}, {{y}})" for op in ("lt", "le", "eq")}
    return found | {"select": f"vec_sel({{z}}, {{y}}, ({bits}){{x}})"}


def _fma(mnemonic: str, lanes: int) -> tuple[MulAdd, ...]:
    spelling = "vec_madd({x}, {y}, {acc})"
    return (MulAdd(form="broadcast", mnemonic=mnemonic, spelling=spelling, cols=lanes),)


def _halves(seen: str) -> tuple[str, str]:
    """Return C that joins the first 64 bits of two vectors, and C that joins their last 64 bits."""
    x, y = (f"({_S64}){{{v}}}" for v in "xy")
    return f"({seen})vec_mergeh({x}, {y})", f"({seen})vec_mergel({x}, {y})"


_WORDS = ("vec_mergee({x}, {y})", "vec_mergeo({x}, {y})")
_FOUR_SHORTS = _bits(64, _U16)
#: Conversion of four f32 to f16, which are repeated in both halves of a vector. It does not use the
#: function of altivec.h, because clang and gcc order its results differently.
_HALVES = (
    f"({{{{ const {_F32} singles_ = {{v}}; {_U32} halves_; "
    '__asm__("xvcvsphp %x0,%x1" : "=wa"(halves_) : "wa"(singles_)); vec_pack(halves_, halves_); }})'
)


def single() -> Vector:
    """Return the vector type of four f32. Loads convert from f16 and bf16, stores to f16."""
    upper = f"vec_add({{v}}, ({_F32})vec_sld(({_U8}){{v}}, ({_U8}){{v}}, 8))"
    total = f"const {_F32} sum_ = {upper}; vec_extract(sum_, 0) + vec_extract(sum_, 1);"
    return _vector(
        "f32",
        muladd=_fma("xvmaddasp", 4),
        sum_lanes=f"({{{{ {total} }}}})",
        loads={
            "f16": f"vec_extract_fp32_from_shorth({_FOUR_SHORTS})",
            "bf16": f"({_F32})vec_mergeh(({_U16})vec_splats((uint16_t)0), {_FOUR_SHORTS})",
            "f64": _each_loaded("f32", 4, "(float)"),
        },
        stores={"f16": _write(64, _HALVES), "f64": _each_stored(4, "(double)")},
        ops={
            **_FLOAT_OPS,
            **_tests(_S32, _U32),
            "to_s32": "vec_signed(vec_rint({x}))",
            "bits": f"({_S32}){{x}}",
        },
        transpose={1: _WORDS, 2: _halves(_F32)},
        numbers=_numbers(),
    )


def _numbers() -> Numbers:
    """Return the lookup of f32 in a table of 16 numbers by the low four bits of each lane.

    The table has 64 bytes. ``vec_perm`` selects bytes of a half by the lower three bits.
    """

    def found(low: int) -> str:
        code = f"({_U32}){{v}}"
        code = f"vec_sr({code}, vec_splats((uint32_t){low}))" if low else code
        code = f"vec_and({code}, vec_splats((uint32_t)15))"
        each, first = (f"vec_splats((uint32_t){n})" for n in ("0x04040404", "0x03020100"))
        places = f"({_U8})vec_add(vec_mul({code}, {each}), {first})"
        halves = (
            f"vec_perm(vec_xl({at}, {{table}}), vec_xl({at + 16}, {{table}}), {places})"
            for at in (0, 32)
        )
        upper = f"({_U8})vec_cmpgt({code}, vec_splats((uint32_t)7))"
        return f"({_F32})vec_sel({', '.join(halves)}, {upper})"

    return in_memory("unsigned char", by_fields(found))


def double() -> Vector:
    """Return the vector type of two f64."""
    return _vector(
        "f64",
        muladd=_fma("xvmaddadp", 2),
        sum_lanes="(vec_extract({v}, 0) + vec_extract({v}, 1))",
        ops={**_FLOAT_OPS, **_tests("__vector double", _U64)},
        transpose={1: ("vec_mergeh({x}, {y})", "vec_mergel({x}, {y})")},
        loads={"f32": _each_loaded("f64", 2, "(double)")},
        stores={"f32": _each_stored(2, "(float)")},
    )


def _each_loaded(element: str, lanes: int, cast: str) -> str:
    """Return C that loads and converts one element after the other; compilers join them."""
    values = ", ".join(f"{cast}({{p}})[{lane}]" for lane in range(lanes))
    return f"(({_TYPES[element][0]}){{{{{values}}}}})"


def _each_stored(lanes: int, cast: str) -> str:
    """Return C that converts and stores one element after the other."""
    return ", ".join(f"({{p}})[{lane}] = {cast}vec_extract({{v}}, {lane})" for lane in range(lanes))


# --- integers -----------------------------------------------------------------------------

_INTEGER_OPS = {
    "add": "vec_add({x}, {y})",
    "sub": "vec_sub({x}, {y})",
    "mul": "vec_mul({x}, {y})",
    "min": "vec_min({x}, {y})",
    "max": "vec_max({x}, {y})",
    "and": "vec_and({x}, {y})",
    "or": "vec_or({x}, {y})",
    "xor": "vec_xor({x}, {y})",
    "shl": "vec_sl({x}, vec_splats((uint32_t)({y})))",
    "shr": "vec_sra({x}, vec_splats((uint32_t)({y})))",
    "ushr": f"({_S32})vec_sr(({_U32}){{x}}, vec_splats((uint32_t)({{y}})))",
    "lt": f"({_S32})vec_cmplt({{x}}, {{y}})",
    "gt": f"({_S32})vec_cmpgt({{x}}, {{y}})",
    "eq": f"({_S32})vec_cmpeq({{x}}, {{y}})",
    "to_f32": "vec_float({x})",
    "float": f"({_F32}){{x}}",
    "select": f"vec_sel({{z}}, {{y}}, ({_U32}){{x}})",
}
#: The pointer ``{p}`` to s64, cast to the type that the functions of altivec.h take.
_LONGS = "((long long *)({p}))"
_NO_SHORTS = f"({_U16})vec_splats((uint16_t)0)"
_NO_BYTES = f"({_U8})vec_splats((uint8_t)0)"
_WIDENED_BYTES = f"({_U16})vec_mergeh({_bits(32, _U8)}, {_NO_BYTES})"
_SHORTS = "vec_pack({v}, {v})"
_BYTES = f"vec_pack({_SHORTS}, {_SHORTS})"
#: For each pair of factor types: products per lane, mnemonic, spelling. If one factor is s8 and the
#: other u8, u8 is the second argument.
_SUMS = {
    ("s8", "u8"): (4, "vmsummbm", "vec_msum({x}, {y}, {acc})"),
    ("u8", "s8"): (4, "vmsummbm", "vec_msum({y}, {x}, {acc})"),
    ("u8", "u8"): (4, "vmsumubm", f"({_S32})vec_msum({{x}}, {{y}}, ({_U32}){{acc}})"),
    ("s16", "s16"): (2, "vmsumshm", "vec_msum({x}, {y}, {acc})"),
}


def _whole_muladd() -> tuple[MulAdd, ...]:
    """Return the multiply-adds of s32 sums: those with groups of 32 bits, then s32 by s32."""
    grouped = tuple(
        MulAdd(form="broadcast", mnemonic=name, spelling=text, cols=4, depth=depth, x=x, y=y)
        for (x, y), (depth, name, text) in _SUMS.items()
    )
    alike = MulAdd(
        form="broadcast",
        mnemonic="vmuluwm, vadduwm",
        spelling="vec_add({acc}, vec_mul({x}, {y}))",
        cols=4,
        instructions=2,
    )
    return (*grouped, alike)


def _alone() -> tuple[MulAdd, ...]:
    """Return the multiply-adds that add the products of one K group to a C scalar."""
    none = f"({_S32})vec_splats(0)"
    return tuple(
        MulAdd(
            form="broadcast",
            mnemonic=f"{op.mnemonic}, vextuwrx, add",
            spelling=f"{{acc}} + vec_extract(({_S32}){op.spelling.replace('{acc}', none)}, 0)",
            cols=1,
            depth=op.depth,
            x=op.x,
            y=op.y,
            instructions=3,
        )
        for op in _whole_muladd()
        if op.depth > 1
    )


_SCALAR = whole("mullw, add")
SUMS = (
    _vector(
        "s32",
        muladd=_whole_muladd(),
        sum_lanes=(
            "(vec_extract({v}, 0) + vec_extract({v}, 1) + vec_extract({v}, 2) + "
            "vec_extract({v}, 3))"
        ),
        loads={
            "s16": f"vec_unpackh(({_S16}){_FOUR_SHORTS})",
            "u16": f"({_S32})vec_mergeh({_FOUR_SHORTS}, {_NO_SHORTS})",
            "s8": f"vec_unpackh(vec_unpackh({_bits(32, _S8)}))",
            "u8": f"({_S32})vec_mergeh({_WIDENED_BYTES}, {_NO_SHORTS})",
        },
        stores={
            "s16": _write(64, _SHORTS),
            "u16": _write(64, _SHORTS),
            "s8": _write(32, _BYTES),
            "u8": _write(32, _BYTES),
            "s64": (
                f"vec_xst(vec_unpackh({{v}}), 0, {_LONGS}), "
                f"vec_xst(vec_unpackl({{v}}), 0, {_LONGS} + 2)"
            ),
        },
        ops=_INTEGER_OPS,
        transpose={1: _WORDS, 2: _halves(_S32)},
    ),
    replace(_SCALAR, muladd=(*_alone(), *_SCALAR.muladd)),
)


_NO_WORDS = f"({_U32})vec_splats(0)"
_LOW_SHORTS = _bits(32, _S16)
_UNSIGNED_SHORTS = f"vec_mergeh({_bits(32, _U16)}, {_NO_SHORTS})"
_UNSIGNED_BYTES = f"vec_mergeh(({_U16})vec_mergeh({_bits(16, _U8)}, {_NO_BYTES}), {_NO_SHORTS})"
#: Vector types of s64. Loads widen narrower integers to s64.
WIDE_SUMS = (
    _vector(
        "s64",
        load=f"vec_xl(0, {_LONGS})",
        store=f"vec_xst({{v}}, 0, {_LONGS})",
        broadcast="vec_splats((long long)*({p}))",
        splat="vec_splats((long long)({x}))",
        muladd=(
            MulAdd(
                form="broadcast",
                mnemonic="vmulld, vaddudm",
                spelling="vec_add({acc}, vec_mul({x}, {y}))",
                cols=2,
                instructions=2,
            ),
        ),
        sum_lanes="(vec_extract({v}, 0) + vec_extract({v}, 1))",
        loads={
            "s16": f"vec_unpackh(vec_unpackh({_LOW_SHORTS}))",
            "u16": f"({_S64})vec_mergeh(({_U32}){_UNSIGNED_SHORTS}, {_NO_WORDS})",
            "s8": f"vec_unpackh(vec_unpackh(vec_unpackh({_bits(16, _S8)})))",
            "u8": f"({_S64})vec_mergeh(({_U32}){_UNSIGNED_BYTES}, {_NO_WORDS})",
        },
        ops={"add": "vec_add({x}, {y})", "mul": "vec_mul({x}, {y})"},
        transpose={1: ("vec_mergeh({x}, {y})", "vec_mergel({x}, {y})")},
    ),
    wide("mulld, add"),
)


def _fields_of(element: str) -> dict[str, tuple[str, ...]]:
    """Return ``Vector.fields``: C that extracts each bit field from the bytes of ``{v}``.

    A field of type f4_e2m1 selects one of 16 numbers in a table by ``vec_perm``.
    """
    ctype, seen = _TYPES[element][0], f"({_U8}){{v}}"
    bytes_ = ", ".join(map(str, table(unsigned=element == "u8")))
    numbers = f"({_U8}){{{{{bytes_}}}}}"

    def part(right: int, mask: int) -> str:
        moved = seen
        if right:
            shift = "vec_sr" if right > 0 else "vec_sl"
            moved = f"{shift}({seen}, vec_splats((unsigned char){abs(right)}))"
        return f"vec_and({moved}, vec_splats((unsigned char){mask}))"

    made = fields(part, lambda index: f"vec_perm({numbers}, {numbers}, {index})")
    return {name: tuple(f"({ctype}){text}" for text in made[name]) for name in made}


def factors(element: str) -> tuple[Vector, ...]:
    """Return the vector types of factors: one fills a register, one has a group of 32 bits."""
    ctype, _, size = _TYPES[element]
    group = f"({ctype})vec_splats((int32_t)({{x}}))"
    tops = f"vec_splats((int32_t){'0x80808080' if size == 1 else '0x80008000'})"
    flipped = f"({ctype})vec_xor((__vector signed int)({{v}}), {tops})"
    held = _vector(
        element,
        splat="",
        broadcast="",
        group=group,
        flip=flipped if other_sign(element) else "",
        fields=_fields_of(element) if element in ("s8", "u8") else {},
        join="vec_or({x}, {y})",
    )
    parts = {n: text for n, text in held.partial_load.items() if n * size < 4}
    few = replace(
        held,
        name="word",
        lanes=4 // size,
        load=_bits(32, ctype),
        store=_write(32, "{v}"),
        mask=None,
        partial_load=parts,
        partial_store={},
    )
    return held, few
