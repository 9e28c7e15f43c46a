"""Checks of all that a target spells, made from its data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from tilewright.elementwise.operations import OPERATIONS, compute
from tilewright.isa.target import Target
from tilewright.isa.vector import ALIKE, Mask, MulAdd, Vector
from tilewright.runtime.arrays.elements import encode

from .arithmetic import DTYPES, Array, fused, halfway, values
from .spellings import Check, c_type

_COUNTS = (1, 7, 16, 23, 31)
_TRIALS = 512
_SHIFTS = ("shl", "shr", "ushr")
_COMPARISONS = ("lt", "le", "eq", "gt")


def checks(target: Target) -> list[Check]:
    """Everything that the target's vectors spell."""
    with np.errstate(all="ignore"):
        return [check for vector in target.vectors for check in _of_vector(target, vector)]


def products(target: Target) -> list[Check]:
    """Its multiply-adds alone."""
    with np.errstate(all="ignore"):
        return [check for vector in target.vectors for check in _products(target, vector)]


def _of_vector(target: Target, vector: Vector) -> Iterator[Check]:
    if not vector.muladd:  # what it holds is seen in products
        if vector.store:
            yield _access(vector)
            yield from _cuts(vector)
            yield from _conversions(vector)
        yield from _products(target, vector)
        return
    yield from _accesses(vector)
    yield from _cuts(vector)
    yield from _conversions(vector)
    yield from _arithmetic(target, vector)
    yield from _transpositions(vector)
    if vector.fill:
        yield from _some_lanes(target, vector)
    yield from _operations(target, vector)
    yield from _products(target, vector)


def _name(vector: Vector, what: str) -> str:
    return f"{vector.name} of {vector.lanes} {vector.element}: {what}"


def _load(vector: Vector, name: str, pointer: str) -> str:
    pointer = f"({_pointer(vector)})({pointer})"
    return f"{vector.ctype} {name} = {vector.load.format(p=pointer)};"


def _store(vector: Vector, value: str) -> str:
    return f"{vector.store.format(p=f'({_pointer(vector)})out', v=value)};"


def _pointer(vector: Vector) -> str:
    return f"{c_type(DTYPES[vector.element])} *"


def _rows(array: Array, columns: int) -> Array:
    return array[: len(array) // columns * columns].reshape(-1, columns)


@cache
def _values(element: str) -> tuple[Array, Array, Array]:
    return values(element, seed=17)


def _bits(array: Array) -> Array:
    """As integers, which are compared bit for bit."""
    return array.view(f"u{array.itemsize}")


def _exact(vector: Vector, array: Array) -> Array:
    """What only holds factors is compared bit for bit: NaNs of bf16 are none to numpy."""
    return array if vector.muladd else _bits(array)


# --- memory -------------------------------------------------------------------------------


def _access(v: Vector) -> Check:
    x = _rows(_values(v.element)[0], v.lanes)
    return Check(_name(v, "load, store"), [_load(v, "x", "in0"), _store(v, "x")], (x,), _bits(x))


def _streamed(v: Vector) -> Check:
    """A store past the caches, to an address that it may be at, and what is there then."""
    x = _rows(_values(v.element)[0], v.lanes)
    room = f"_Alignas({v.nbytes}) {c_type(DTYPES[v.element])} room[{v.lanes}];"
    stored = f"{v.stream.format(p='room', v='x')};"
    statements = [_load(v, "x", "in0"), room, stored, _load(v, "y", "room"), _store(v, "y")]
    return Check(_name(v, "stream"), statements, (x,), _bits(x))


def _accesses(v: Vector) -> Iterator[Check]:
    yield _access(v)
    if v.stream:
        yield _streamed(v)
    x = _rows(_values(v.element)[0], v.lanes)
    ones = _rows(_values(v.element)[0], 1)
    spread = np.repeat(ones, v.lanes, axis=1)
    for word, value in (
        ("broadcast", v.broadcast.format(p="in0")),
        ("splat", v.splat.format(x="*in0")),
    ):
        if not value:  # of f16: C has no such numbers
            continue
        statements = [f"{v.ctype} x = {value};", _store(v, "x")]
        yield Check(_name(v, word), statements, (ones,), spread)
    yield Check(
        _name(v, "zero"),
        [f"{v.ctype} x = {v.zero};", _store(v, "x")],
        (),
        np.zeros_like(_bits(x)),
        before=_bits(x),
    )


def _cuts(v: Vector) -> Iterator[Check]:
    """Accesses of fewer lanes: rows of as many elements, the last of which ends at a guard."""
    for active in range(1, v.lanes):
        x = _rows(_values(v.element)[0], active)
        whole = np.zeros((len(x), v.lanes), x.dtype)
        whole[:, :active] = x
        for how, mask, load, store in _cut_spellings(v, active):
            if load:
                value = f"{v.ctype} x = {load.format(p='in0', mask='mask')};"
                statements = [*mask, value, _store(v, "x")]
                yield Check(_name(v, f"{how} load of {active}"), statements, (x,), _exact(v, whole))
            if not store:
                continue
            kept = f"{store.format(p=f'({_pointer(v)})out', v='x', mask='mask')};"
            filled = np.concatenate([x, _values(v.element)[1][: x.size].reshape(x.shape)], axis=1)
            filled = np.tile(filled, v.lanes)[:, : v.lanes]
            yield Check(
                _name(v, f"{how} store of {active}"),
                [*mask, _load(v, "x", "in0"), kept],
                (filled,),
                _exact(v, np.ascontiguousarray(filled[:, :active])),
            )


def _cut_spellings(v: Vector, active: int) -> Iterator[tuple[str, list[str], str, str]]:
    if v.mask is not None:
        mask = f"{v.mask.ctype} mask = {v.mask.make.format(count='count')};"
        made = [f"const int64_t count = {active};", mask]
        yield "masked", made, v.mask.load, v.mask.store
    if active in v.partial_load or active in v.partial_store:
        yield "partial", [], v.partial_load.get(active, ""), v.partial_store.get(active, "")


def _conversions(v: Vector) -> Iterator[Check]:
    for element, spelling in v.loads.items():
        x = _rows(_every(element), v.lanes)
        statements = [f"{v.ctype} x = {spelling.format(p='in0')};", _store(v, "x")]
        name = _name(v, f"load of {element}")
        yield Check(name, statements, (x,), _held(x, v))
    for element, spelling in v.stores.items():
        x = _rows(np.concatenate([*_values(v.element), *_hard(v)]), v.lanes)
        statements = [_load(v, "x", "in0"), f"{spelling.format(p='out', v='x')};"]
        yield Check(_name(v, f"store of {element}"), statements, (x,), x.astype(DTYPES[element]))
    if v.mask is not None:
        yield from _cut_conversions(v, v.mask, v.lanes // 2 + 1)
    yield from _spreads(v)


def _cut_conversions(v: Vector, mask: Mask, active: int) -> Iterator[Check]:
    """Conversions of so many lanes, and loads that leave anything in the others."""
    ((_, made, _, kept), *_) = _cut_spellings(v, active)
    for element, spelling in mask.loads.items():
        x = _rows(_every(element), active)
        whole = np.zeros((len(x), v.lanes), DTYPES[v.element])
        whole[:, :active] = _held(x, v)
        value = f"{v.ctype} x = {spelling.format(p='in0', mask='mask')};"
        name = _name(v, f"masked load of {element}")
        yield Check(name, [*made, value, _store(v, "x")], (x,), _exact(v, whole))
    for element, spelling in mask.stores.items():
        x = _rows(np.concatenate(_values(v.element)), v.lanes)
        written = f"{spelling.format(p='out', v='x', mask='mask')};"
        expected = np.ascontiguousarray(x[:, :active]).astype(DTYPES[element])
        name = _name(v, f"masked store of {element}")
        yield Check(name, [*made, _load(v, "x", "in0"), written], (x,), expected)
    if mask.loose is not None:
        loads = {v.element: mask.loose.load, **mask.loose.loads}
        for element, spelling in loads.items():
            x = _rows(_values(element)[0] if element == v.element else _every(element), active)
            value = f"{v.ctype} x = {spelling.format(p='in0', mask='mask')};"
            written = f"{kept.format(p=f'({_pointer(v)})out', v='x', mask='mask')};"
            name = _name(v, f"loose load of {element}")
            yield Check(name, [*made, value, written], (x,), _exact(v, _held(x, v)))


def _spreads(v: Vector) -> Iterator[Check]:
    """One element in all lanes; a few repeated, and each of them in all lanes."""
    for element, spread in v.spreads.items():
        x = _rows(_every(element), 1)
        statements = [f"{v.ctype} x = {spread.spelling.format(p='in0')};", _store(v, "x")]
        expected = x.astype(DTYPES[v.element]).repeat(v.lanes, axis=1)
        yield Check(_name(v, f"spread of {element}"), statements, (x,), expected)
    if v.flips:
        yield from _flips(v, DTYPES[v.flips])
    for element, few in v.repeats.items():
        every = _values(element)[0] if element == v.element else _every(element)
        x = _rows(every, few.count)
        held = f"{v.ctype} x = {few.spelling.format(p='in0')};"
        real = x.astype(DTYPES[v.element])
        whole = np.tile(real, (1, v.lanes // few.count))
        yield Check(_name(v, f"repeat of {element}"), [held, _store(v, "x")], (x,), whole)
        for lane in range(few.count if few.pick else 0):
            picked = f"{v.ctype} y = {few.pick.format(v='x', lane=lane)};"
            expected = real[:, [lane]].repeat(v.lanes, axis=1)
            name = _name(v, f"pick of {element} {lane}")
            yield Check(name, [held, picked, _store(v, "y")], (x,), expected)


def _flips(v: Vector, dtype: np.dtype[Any]) -> Iterator[Check]:
    """Integers of the other sign, flipped as they are loaded, and a group of them in all lanes."""
    half = 1 << 8 * dtype.itemsize - 1

    def flipped(x: Array) -> Array:
        moved = x.astype(np.int64) + (half if dtype.kind == "i" else -half)
        return moved.astype(DTYPES[v.element])

    x = _rows(_every(v.flips), v.lanes)
    pointer = f"({_pointer(v)})in0"
    held = f"{v.ctype} x = {v.loading(v.flips, 0, None).format(p=pointer)};"
    yield Check(_name(v, f"load of {v.flips}, flipped"), [held, _store(v, "x")], (x,), flipped(x))
    x = _rows(_every(v.flips), 4 // dtype.itemsize)
    bits = ["int32_t bits;", "__builtin_memcpy(&bits, in0, sizeof bits);"]
    held = f"{v.ctype} x = {v.broadcasting(v.flips, x.shape[1]).format(x='bits', bits=32)};"
    expected = np.tile(flipped(x), (1, v.lanes // x.shape[1]))
    name = _name(v, f"group of {v.flips}, flipped")
    yield Check(name, [*bits, held, _store(v, "x")], (x,), expected)


def _hard(v: Vector) -> list[Array]:
    """More elements of f64, which are rounded when they are stored."""
    return [halfway()] if v.element == "f64" else []


def _held(x: Array, v: Vector) -> Array:
    """The elements as a load converts them: if they are wider than lanes, integers saturate."""
    wider = x.itemsize > DTYPES[v.element].itemsize
    return encode(x, v.element) if wider else x.astype(DTYPES[v.element])


def _every(element: str) -> Array:
    """Each value of a type, once; of types of 32 and 64 bits, some that are hard to convert."""
    dtype = DTYPES[element]
    if dtype.itemsize >= 4:
        return halfway() if element == "f64" else _values(element)[0]
    return np.arange(1 << 8 * dtype.itemsize).astype(f"u{dtype.itemsize}").view(dtype)


# --- arithmetic ---------------------------------------------------------------------------


def _arithmetic(target: Target, v: Vector) -> Iterator[Check]:
    small = _small(v.element, (_TRIALS, v.lanes), 1)
    single = target.of(v.element)[-1]
    total_of = f"{single.ctype} total = {v.sum_lanes.format(v='x')};"
    statements = [_load(v, "x", "in0"), total_of, f"{single.store.format(p='out', v='total')};"]
    total = small.sum(axis=1, keepdims=True, dtype=small.dtype)
    yield Check(_name(v, "sum_lanes"), statements, (small,), total)


def _transpositions(v: Vector) -> Iterator[Check]:
    x, y, _ = (_rows(a, v.lanes) for a in _values(v.element))
    given = [_load(v, "x", "in0"), _load(v, "y", "in1")]
    for block, pair in v.transpose.items():
        blocks = [a.reshape(len(x), -1, 2, block) for a in (x, y)]
        for odd, spelling in enumerate(pair):
            expected = np.stack([b[:, :, odd] for b in blocks], axis=2).reshape(x.shape)
            value = f"{v.ctype} z = {spelling.format(x='x', y='y')};"
            name = _name(v, f"transpose of {block}, {'odd' if odd else 'even'}")
            yield Check(name, [*given, value, _store(v, "z")], (x, y), expected)
    for bits, pair in v.mixes.items():
        parts = [a.view(f"u{bits // 8}").reshape(len(a), -1, 2) for a in (x, y)]
        for odd, spelling in enumerate(pair):
            mixed: Array = np.stack([b[:, :, odd] for b in parts], axis=2).reshape(len(x), -1)
            value = f"{v.ctype} z = {spelling.format(x='x', y='y')};"
            name = _name(v, f"mix of {bits} bits, {'odd' if odd else 'even'}")
            yield Check(name, [*given, value, _store(v, "z")], (x, y), mixed.view(x.dtype))
    for block, pair in v.unzip.items():
        blocks = [a.reshape(len(x), -1, 2, block) for a in (x, y)]
        for odd, spelling in enumerate(pair):
            expected = np.concatenate([b[:, :, odd] for b in blocks], axis=1).reshape(x.shape)
            value = f"{v.ctype} z = {spelling.format(x='x', y='y')};"
            name = _name(v, f"unzip of {block}, {'odd' if odd else 'even'}")
            yield Check(name, [*given, value, _store(v, "z")], (x, y), expected)


def _some_lanes(target: Target, v: Vector) -> Iterator[Check]:
    """Lanes from one register or another, the upper lanes alone, and the first lane."""
    x, y, _ = (_rows(a, v.lanes) for a in _values(v.element))
    given = [_load(v, "x", "in0"), _load(v, "y", "in1")]
    for active in sorted({1, v.lanes // 2, v.lanes - 1}):
        count = f"const int64_t count = {active};"
        mask = [f"{v.mask.ctype} mask = {v.mask.make.format(count='count')};"] if v.mask else []
        found = v.fill.format(v="x", other="y", mask="mask", count="count")
        filled = np.where(np.arange(v.lanes) < active, x, y)
        statements = [*given, count, *mask, f"{v.ctype} z = {found};", _store(v, "z")]
        yield Check(_name(v, f"fill after {active}"), statements, (x, y), filled)
    single = target.holding(v.element, 1)
    store = single.store.format(p=f"({_pointer(v)})out", v="z")
    for block in (1 << i for i in range(v.lanes.bit_length() - 1)):
        moved = f"{v.ctype} upper = {v.taking(block).format(v='x')};"
        first = f"{single.ctype} z = {v.first.format(v='upper')};"
        statements = [given[0], moved, first, f"{store};"]
        expected = np.ascontiguousarray(x[:, block : block + 1])
        yield Check(_name(v, f"lane {block} of {v.lanes}"), statements, (x,), expected)


def _operations(target: Target, v: Vector) -> Iterator[Check]:
    for fn, spelling in v.ops.items():
        held = target.holding(_result(v, fn), v.lanes)
        given = [
            _load(_argument(target, v, fn, i), name, f"in{i}")
            for name, i in zip("xyz", range(OPERATIONS[fn].arity - (fn in _SHIFTS)), strict=False)
        ]
        for count in _COUNTS if fn in _SHIFTS else (None,):
            arrays = _arguments(v, fn)[: len(given)]
            last = () if count is None else (np.int32(count),)
            result = _memory(v, fn in _COMPARISONS, compute(fn, *arrays, *last))
            value = spelling.format(x="x", y="y" if count is None else count, z="z")
            inputs = (_memory(v, fn == "select" and not i, a) for i, a in enumerate(arrays))
            yield Check(
                _name(v, fn if count is None else f"{fn} by {count}"),
                [*given, f"{held.ctype} found = {value};", _store(held, "found")],
                tuple(_rows(a, v.lanes) for a in inputs),
                _rows(result, v.lanes),
            )


def _arguments(v: Vector, fn: str) -> tuple[Array, ...]:
    x, y, z = _values(v.element)
    if fn == "to_s32":
        return (np.where(np.abs(x) < 2.0**31, x, np.float32(0.5)),)
    if fn == "scale":
        return x, np.where(np.isinf(y), np.float32(1), y)
    if fn == "select":
        return (compute("lt", y, z), y, z)
    return x, y, z


def _mask_element(v: Vector) -> str:
    return "f64" if v.element == "f64" else "s32"


def _result(v: Vector, fn: str) -> str:
    """The element of the register that holds what ``fn`` gives."""
    return _mask_element(v) if fn in _COMPARISONS else OPERATIONS[fn].result(v.element)


def _argument(target: Target, v: Vector, fn: str, index: int) -> Vector:
    masks = fn == "select" and index == 0
    return target.holding(_mask_element(v), v.lanes) if masks else v


def _memory(v: Vector, masks: bool, array: Array) -> Array:
    """Lanes as they are stored: a mask of a single f64 is a number, -1 or 0."""
    alone = masks and v.element == "f64" and v.lanes == 1
    return array.astype(np.float64) if alone else array


# --- products -----------------------------------------------------------------------------


def _small(element: str, shape: tuple[int, ...], seed: int) -> Array:
    """Numbers whose products and sums are exact: integers, in f32 and narrower small ones."""
    rng, dtype = np.random.default_rng(seed), DTYPES[element]
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        drawn = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
        edges = rng.choice(np.array([info.min, info.max], dtype), shape)
        return np.where(rng.random(shape) < 0.3, edges, drawn)
    largest = 8 if dtype == np.float16 else 128
    return rng.integers(-largest, largest + 1, shape).astype(dtype)


def _of_few(element: str, shape: tuple[int, ...], seed: int) -> Array:
    """Integers of which sums of few products are held exactly: of 6 bits without sign."""
    drawn = _small(element, shape, seed)
    return {"u8": drawn & 63, "s16": drawn // 2}.get(element, drawn)


def _rough(element: str, shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(DTYPES[element])


def _wild(element: str, shape: tuple[int, ...], seed: int) -> Array:
    """Few numbers, Inf and NaN among them, whose finite sums are exact."""
    some = [0.0, 1.0, -2.0, 3.0, 1.0, -2.0, 3.0, 5.0, np.inf, -np.inf, np.nan]
    return np.random.default_rng(seed).choice(some, shape).astype(DTYPES[element])


def _any(element: str, shape: tuple[int, ...], seed: int) -> Array:
    """Any bits, and special values."""
    drawn = np.random.default_rng(seed).choice(values(element, seed)[seed % 3], shape)
    return drawn.astype(DTYPES[element])


def _products(target: Target, v: Vector) -> Iterator[Check]:
    if v.few is not None:
        yield _product(target, v, v.few, None, _of_few)
    for op in v.muladd:
        lanes = range(op.lanes or v.lanes) if op.form == "lane" else [None]
        for lane in lanes:
            yield _product(target, v, op, lane, _small)
            if DTYPES[v.element].kind == "f":
                yield _product(target, v, op, lane, _rough)
                yield _product(target, v, op, lane, _any if _fused(op) else _wild)


def _fused(op: MulAdd) -> bool:
    """Whether a product is added with one rounding: plain C alone has no mnemonic."""
    return op.depth == 1 and bool(op.mnemonic)


def _product(target: Target, v: Vector, op: MulAdd, lane: int | None, draw: Any) -> Check:
    groups = op.rows if lane is None else op.lanes or v.lanes
    acc = draw(v.element, (_TRIALS, op.rows, op.cols), 2)
    x = _drawn(draw, op.x or v.element, (_TRIALS, op.cols, op.depth), 3, op)
    y = _drawn(draw, op.y or v.element, (_TRIALS, groups, op.depth), 4, op)
    chosen = y if lane is None else y[:, lane : lane + 1]
    statements = [
        _load(v, "acc", "out"),
        _load(_factor(target, v, op.x, op.cols, op), "x", "in0"),
        *_across(target, v, op),
        f"acc = {op.spelling.format(acc='acc', x='x', y='y', p='in1', lane=lane)};",
        _store(v, "acc"),
    ]
    form = op.form if lane is None else f"{op.form} {lane}"
    expected, tolerance = _sums(v, op, acc, x, chosen)
    return Check(
        _name(v, f"{op.mnemonic or 'multiply, add'}, {form}, {draw.__name__.strip('_')}"),
        statements,
        (x.reshape(_TRIALS, -1), y.reshape(_TRIALS, -1)),
        _in_lanes(op, expected),
        before=_in_lanes(op, acc),
        tolerance=_in_lanes(op, tolerance) if tolerance is not None and draw is _rough else None,
    )


def _drawn(draw: Any, element: str, shape: tuple[int, ...], seed: int, op: MulAdd) -> Array:
    """A factor; one that is widened to lanes of 64 bits is no larger than s32."""
    widened = op.x == op.y == "s64"
    found: Array = draw("s32" if widened else element, shape, seed)
    return found.astype(DTYPES[element])


def _in_lanes(op: MulAdd, sums: Array) -> Array:
    """Rows and columns of sums as the accumulator's lanes have them: segment by segment."""
    parts = sums.reshape(_TRIALS, op.rows, op.segments, -1)
    return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(_TRIALS, -1)


def _factor(target: Target, v: Vector, element: str, groups: int, op: MulAdd) -> Vector:
    return v if op.factors == ALIKE else target.holding(element, groups * op.depth)


def _across(target: Target, v: Vector, op: MulAdd) -> list[str]:
    """Statements that make ``y``."""
    if op.form == "lane" or op.rows > 1:
        groups = v.lanes if op.form == "lane" else op.groups
        held = _factor(target, v, op.y, groups, op)
        if not (op.lanes or op.segments > 1):
            return [_load(held, "y", "in1")]
        filled = held.repeats[held.element].spelling.format(p=f"({_pointer(held)})(in1)")
        return [f"{held.ctype} y = {filled};"]
    if op.form == "scalar":
        single = target.holding(op.y or v.element, 1)
        return [f"{single.ctype} y = {single.load.format(p='in1')};"]
    if "{p}" in op.spelling:  # which reads it itself
        return []
    held = _factor(target, v, op.y, op.cols, op)
    if op.depth == 1:
        return [f"{held.ctype} y = {held.broadcast.format(p='in1')};"]
    bits = 8 * DTYPES[op.y].itemsize * op.depth
    # Its factors are groups for the sums of few, that are twice as long.
    group = f"(uint{bits}_t)bits * 0x10001" if op is v.few else "bits"
    return [
        f"int{bits}_t bits;",
        "__builtin_memcpy(&bits, in1, sizeof bits);",
        f"{held.ctype} y = {held.group.format(x=group, bits=bits)};",
    ]


def _sums(v: Vector, op: MulAdd, acc: Array, x: Array, y: Array) -> tuple[Array, Array | None]:
    """What the product adds up to, and how far off it may be, None for not at all."""
    if acc.dtype.kind in "iu":
        total = np.einsum("tcd,trd->trc", x.astype(np.int64), y.astype(np.int64))
        return (total + acc).astype(acc.dtype), None
    if _fused(op):
        return fused(x[:, None, :, 0], y[:, :, None, 0], acc), None
    wide = np.longdouble
    total = np.einsum("tcd,trd->trc", x.astype(wide), y.astype(wide)) + acc
    size = np.einsum("tcd,trd->trc", np.abs(x).astype(wide), np.abs(y).astype(wide)) + np.abs(acc)
    bound = (op.depth + 1) * np.finfo(acc.dtype).eps * size
    return total.astype(acc.dtype), bound.astype(np.float64)
