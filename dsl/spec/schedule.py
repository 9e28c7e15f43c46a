"""How it is computed: register tile, loops, blocking, unrolling, tails, packing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from tilewright.errors import ScheduleError, ScheduleTypeError
from tilewright.keywords import spelled

from .sizes import MAX_FIXED, MAX_SIZE, call_text, whole_number

TAILS = ("auto", "mask", "narrow", "overlap", "bounce")
PACKS = (None, "a", "b", "ab")
STORES = (None, "stream", "cached")
LETTERS = "bmnkBMN"
#: What m, n and k are at least where packing blocks that the caches hold pays.
LARGE = (32, 32, 64)
#: Rows of C from which on a packed B is read often.
MANY_ROWS = 128
#: The length of lines of a large C up to which one operand is packed as a whole and the other read
#: where it lies: what is packed of that would be read too seldom. On Granite Rapids 3136x64x576 in
#: f32 takes 1.2 ms so, and 1.8 ms in blocks.
THIN = 128
#: Steps of K in a block of that operand: the second cache holds it, and a row of tiles of the other
#: one's is read once for all of C's columns.
_THIN_STEPS = 1024
#: Elements of a part of C's lines that is written before the next lines where K is less than
#: ``LARGE`` says: C passes to memory then, and the operand along it stays in the nearest caches.
_LINE = 2048
#: Lines of an operand, rows of A or columns of B, all of which a near cache holds beside blocks of
#: the other one, whatever K is.
NEAR_LINES = 256
#: Lines of a matrix that few rows read side by side, each from end to end: as many as a core asks
#: for ahead by itself. 4x4096x4096 in f32 takes 2.5 ms on Zen 4 with K in blocks of 8, and 6.4 in
#: blocks of 64, which read a piece of each line. A row by 2048x2048 whose K is contiguous takes
#: 0.25 ms in tiles of 8 lines, 0.41 of 12 and 0.54 of 16.
LINES = 8
#: Rows of C, and what m n k is at least where up to so many stream a matrix of 4 bytes an element:
#: sums in C pass twice for each block, which memory hides, and of more rows caches do not. On
#: Emerald Rapids 8x8192x8192 takes 28 ms so, and 62 with K in blocks of 64; 16x2048x2048, which
#: lies in a cache, 1.5 and 1.2.
_STREAMS = ((1, 1 << 16), (4, 1 << 19), (8, 1 << 25), (16, 5 << 25))
FEW_ROWS = _STREAMS[-1][0]
#: Steps of K ahead of which lines are asked for: as many cycles as the second cache takes, or more.
#: Lines a power of two apart share places in the first cache, which eight steps fill: 120x1024x2048
#: in f64 takes 1.13 times as long with 8 as with 4 on Emerald Rapids.
STEPS_AHEAD = 4
#: Rows of C up to which longer lines of B are read where they lie, rather than packed.
HALF_ROWS = MANY_ROWS // 2


def large_work(rows: int) -> int:
    """What m n k is at least, besides: with few rows B must be more than a near cache holds."""
    return 1 << 26 if rows < MANY_ROWS else 1 << 25


def line_in_place(rows: int, near: int) -> int:
    """Bytes of a line of B up to which few ``rows`` of C read it where it lies, however large B is.

    Packing takes as long as 14 rows do: 49x512x4608 in f32 takes 2.0 ms so on Emerald Rapids, 1.8
    in place. Between the rows of a tile and the next one's a block of K and C stay in the second
    cache, of ``near`` bytes; of longer lines they do not.
    """
    if rows >= MANY_ROWS:
        return 0
    return near // (256 if rows <= HALF_ROWS else 1024)


def large_converted(*, unit: bool) -> tuple[int, int, int]:
    """What m, n and k are at least where elements are converted as blocks are packed.

    Few columns do not repay that, but few rows do where B is large. What is converted as a whole
    goes to memory and back, by pages that are new in each call: 4x4096x4096 in bf16 takes 21 ms so
    on Zen 4, and 2.8 in blocks. Lines of ``THIN`` elements do not repay it to vectors either, which
    then read rows that were converted once: 784x128x1152 in f16 has 149 GFLOPS so on Emerald
    Rapids, 131 in blocks.
    """
    return 2, THIN if unit else THIN + 1, 64


#: What m n k is at least, besides, where operands are converted: that is done once in either case,
#: as a whole or in blocks. 196x256x2304 in f16 was 2.8 times as fast in blocks.
CONVERTED_WORK = 1 << 26
#: Bytes of a converted matrix, or elements of one that is transposed on the way, from which on
#: blocks pay for few rows too, since pages of the whole would be new in each call.
_FEW_CONVERTED, _FEW_TURNED = 1 << 24, 1 << 20
#: Rows up to which vectors of halves and of bytes along K are ahead of blocks: 31x2048x2048 by
#: ``w.T`` takes 1.7 ms in bf16 on Zen 4, in blocks 1.8, and 40 rows 2.3 and 2.1; in s8 0.71 and
#: 0.94. A target has no more of them than registers: with 16 fewer lines share a load, and 24 rows
#: by 300x300 in s8 take 52 us on AVX2, in blocks 36.
FEW_ALONG_K = 32
#: And where a matrix unit takes the blocks: on Emerald Rapids 2048x2048 by 4, 6 and 8 columns in
#: bf16 takes 0.46, 0.84 and 1.1 ms along K, and 0.54 in matrices.
FEW_BESIDE_UNIT = 4
#: Lines of which matrices are made on the way where both operands lie along K, so that those of the
#: other one are read where they lie: 16 rows by 2048x2048 take 0.52 ms so, 0.75 where B is turned,
#: and 31 rows 0.6 and 0.9.
FEW_IN_MATRICES = 31


def converted_work(rows: int, itemsize: int, *, turned: bool = False) -> tuple[int, int, int]:
    """Numbers of rows, the first and the last, of which m n k is to be at least the third.

    ``itemsize`` is that of what the matrix is converted to; it is ``turned`` if it lies along K.
    """
    first, each = 1, _FEW_TURNED if turned else _FEW_CONVERTED // itemsize
    while first * each < CONVERTED_WORK:
        if rows < 2 * first:
            return first, 2 * first - 1, first * each
        first *= 2
    return first, MAX_SIZE, CONVERTED_WORK


def streams(rows: int, itemsize: int = 4) -> tuple[int, int, int] | None:
    """Of how many rows, from the first to the last number, a matrix is streamed as of ``rows``, and
    from what m n k on; None of too many. ``itemsize`` is that of the matrix.
    """
    first = 1
    for most, work in _STREAMS:
        if rows <= most:
            return first, most, work * 4 // itemsize
        first = most + 1
    return None


@spelled(ScheduleTypeError)
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Schedule:
    """How a spec is computed; ``None`` leaves the choice to the cost model.

    ``tile`` is (mr, nr), rows by columns of C held in registers. ``loops`` names the loops,
    outermost first: ``b`` batch, ``m``, ``n``, ``k``; letters left of the last ``m`` or ``n``
    are loops over blocks, right of it the accumulators stay in registers. ``block`` gives the
    step of an earlier one of two loops of the same letter, as a mapping or as pairs: a Schedule
    equals the one that is made from its ``dataclasses.asdict``, by way of JSON too. What it leaves
    out is as large as the target's caches hold.

    ``M`` and ``N`` are loops that run in parallel: ``"NMk"`` spreads all tiles of C, bit for bit
    as ``"nmk"`` computes them. ``threads`` is how many threads there are at most; without it, as
    many as the process may use CPUs. With ``threads`` and without ``loops``, m and n are parallel.
    What is too short to pay, or finds the threads taken by another call, runs on one.

    ``prefetch`` is how many K steps ahead the vectors' operand is asked for, of a quantized B how
    many blocks of K; what was packed just before is in the cache already, and is not.

    ``k_unroll`` is how many steps of K stand in one trip of the innermost loop, ``k_split`` how
    many sets of accumulators share them. ``vectorize`` is the dimension along which vectors lie,
    ``"m"``, ``"n"``, ``"k"`` or, for a stack, ``"b"``. ``pack`` names the operands that are copied
    into the order in which tiles read them: ``"a"``, ``"b"`` or ``"ab"``. ``tails`` is what is done
    with what tiles leave over: ``"mask"``, ``"narrow"`` (partial loads and stores), ``"overlap"``,
    ``"bounce"`` (by way of the stack), or ``"auto"``.

    ``stores``: ``"stream"`` writes C past the caches, in whole vectors where its lines are aligned,
    ``"cached"`` does not. ``unpack_rows`` is from how many rows of C on a quantized B is unpacked
    before tiles read it, where A is floating point: fewer rows unpack it as they load it. Where
    ``loops`` are asked for without it, all do. Where A is integers it is from how many rows on a
    matrix unit multiplies them by parts of B that are unpacked for it. Raises ScheduleError.

    >>> schedule = tw.Schedule(tile=(4, 16), loops="nmknk", block={"n": 64, "k": 128}, pack="b")
    >>> kernel = tw.compile(tw.Gemm(256, 256, 256), schedule)
    >>> kernel.verify().cases
    3
    >>> kernel.schedule.tile, kernel.schedule.pack
    ((4, 16), 'b')
    """

    tile: tuple[int, int] | None
    loops: str | None
    block: tuple[tuple[str, int], ...]
    k_unroll: int | None
    k_split: int | None
    vectorize: Literal["m", "n", "k", "b"] | None
    pack: Literal["a", "b", "ab"] | None
    tails: str
    prefetch: int | None
    threads: int | None
    stores: Literal["stream", "cached"] | None
    unpack_rows: int | None

    def __init__(
        self,
        tile: tuple[int, int] | None = None,
        loops: str | None = None,
        block: Mapping[str, int] | Sequence[Sequence[Any]] | None = None,
        k_unroll: int | None = None,
        k_split: int | None = None,
        vectorize: Literal["m", "n", "k", "b"] | None = None,
        pack: Literal["a", "b", "ab"] | None = None,
        tails: str = "auto",
        prefetch: int | None = None,
        threads: int | None = None,
        stores: Literal["stream", "cached"] | None = None,
        unpack_rows: int | None = None,
    ) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("tile", None if tile is None else _tile(tile))
        put("loops", None if loops is None else _loops(loops))
        put("block", _block(block))
        put("k_unroll", _count(k_unroll, "k_unroll"))
        put("k_split", _count(k_split, "k_split"))
        put("vectorize", _one_of(vectorize, (None, *"mnkb"), "vectorize"))
        put("pack", _one_of(pack, PACKS, "pack"))
        put("tails", _one_of(tails, TAILS, "tails"))
        put("prefetch", _count(prefetch, "prefetch"))
        put("threads", _threads(threads, self.loops))
        put("stores", _one_of(stores, STORES, "stores"))
        put("unpack_rows", _count(unpack_rows, "unpack_rows"))
        if k_unroll and k_split and k_unroll % k_split:
            raise ScheduleError(
                "k_unroll must be a multiple of k_split",
                got=f"k_unroll={k_unroll}, k_split={k_split}",
                hint=f"k_unroll={k_split * max(1, k_unroll // k_split)}",
            )

    def __repr__(self) -> str:
        options: dict[str, tuple[object, object]] = {
            f.name: (getattr(self, f.name), "auto" if f.name == "tails" else None)
            for f in fields(self)
        }
        options["block"] = (_Block(self.block), _Block(()))
        return call_text("Schedule", [], options)


class _Block(tuple[tuple[str, int], ...]):
    """Prints as the mapping it is, without braces: the text stands in comments of C."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"dict({', '.join(f'{letter}={size}' for letter, size in self)})"


#: The most that each of them may be; what fewer registers or sizes allow is said by the plan.
_MOST = {"tile": 2**16, "block": MAX_FIXED, "k_unroll": 2**10, "k_split": 2**10,
         "prefetch": 2**20, "threads": 2**12, "unpack_rows": 2**31}  # fmt: skip


def _whole(value: Any, name: str) -> int | None:
    """``value`` as an int from 1 to what ``name`` may be; None if it is none."""
    number = whole_number(value)
    return number if number is not None and 1 <= number <= _MOST[name] else None


def _tile(tile: Any) -> tuple[int, int]:
    sizes = [_whole(size, "tile") for size in tile] if isinstance(tile, (tuple, list)) else []
    match sizes:
        case [int(mr), int(nr)]:
            return mr, nr
    raise ScheduleError(
        "tile must be (mr, nr), rows by columns of C",
        got=tile,
        expected=f"two positive ints, each at most {_MOST['tile']}",
        hint="tile=(8, 48)",
    )


def _loops(loops: Any) -> str:
    if isinstance(loops, str) and "K" in loops and set(loops) <= set(LETTERS + "K"):
        raise ScheduleError(
            "K cannot run in parallel: all trips of k add to the same elements of C",
            got=loops,
            expected="upper case for m and n, and for the b of a stack of products",
            hint=repr(loops.replace("K", "k")),
        )
    legal = isinstance(loops, str) and loops != "" and set(loops) <= set(LETTERS)
    if not legal or loops.lower().count("b") > 1 or max(map(loops.lower().count, "mnk")) > 2:
        raise ScheduleError(
            "loops must name the loops, outermost first",
            got=loops,
            expected="letters of 'bmnk', m, n and k at most twice, b at most once",
            hint='"nmk", "bnmk" (batch outside), "nmbk" (batch inside) or "NMk" (in parallel)',
        )
    return str(loops)


def _threads(threads: Any, loops: str | None) -> int | None:
    count = _count(threads, "threads")
    if count is not None and count > 1 and loops is not None and loops == loops.lower():
        last = max(map(loops.rfind, "mn"))
        shown = f"{loops[:last]}{loops[last].upper()}{loops[last + 1 :]}" if last >= 0 else "NMk"
        raise ScheduleError(
            "threads need a loop that runs in parallel: m or n in upper case",
            got=f"loops={loops!r}, threads={count}",
            hint=f"loops={shown!r}",
        )
    return count


def _block(block: Any) -> tuple[tuple[str, int], ...]:
    """The blocks in alphabetical order, from a mapping or from pairs as JSON has them."""
    if block is None:
        return ()
    pairs: Any = [None]
    if isinstance(block, (tuple, list)):
        pairs = block
    elif isinstance(block, Mapping):
        pairs = block.items()
    sizes: dict[str, int] = {}
    for pair in pairs:
        letter, size = pair if isinstance(pair, (tuple, list)) and len(pair) == 2 else ("", 0)
        whole = _whole(size, "block")
        known = isinstance(letter, str) and letter in ("m", "n", "k") and letter not in sizes
        if not known or whole is None:
            raise ScheduleError(
                "block must map 'm', 'n' or 'k' to a positive int",
                got=block,
                expected="each letter once, and sizes of at most 2**48",
                hint="block={'k': 64}, or the same as pairs: [['k', 64]]",
            )
        sizes[letter] = whole
    return tuple(sorted(sizes.items()))


def _count(value: Any, name: str) -> int | None:
    if value is None:
        return None
    whole = _whole(value, name)
    if whole is None:
        raise ScheduleError(
            f"{name} must be a positive int", got=value, expected=f"1 to {_MOST[name]}, or None"
        )
    return whole


def _one_of(value: Any, legal: tuple[Any, ...], name: str) -> Any:
    if not (value is None or isinstance(value, str)) or value not in legal:
        raise ScheduleError(
            f"unknown {name}", got=value, expected=f"one of {', '.join(map(repr, legal))}"
        )
    return value


# --- nests for many lines of C, which lie along the dimension ``along`` ---------------------------


def of_thin(along: Literal["m", "n"]) -> Schedule:
    """For lines of C of at most ``THIN`` elements: the operand along them is packed.

    On Emerald Rapids 3136x64x576 in f32 has 157 GFLOPS so, 138 with columns of tiles outside of
    rows, and 784x128x1152 in f64 77 and 70.
    """
    block = {"k": _THIN_STEPS}
    if along == "n":
        return Schedule(loops="kMnk", pack="b", block=block, vectorize="n")
    return Schedule(loops="kNmk", pack="a", block=block, vectorize="m")


def of_short_sums(along: Literal["m", "n"]) -> Schedule:
    """For a K of less than ``LARGE``: C's lines are written from end to end, the operand is packed.

    On Emerald Rapids 12544x96x16 in f32 has 128 GFLOPS so, and 102 where B is read in place.
    """
    if along == "n":
        return Schedule(loops="nmnk", pack="b", block={"n": _LINE}, vectorize="n")
    return Schedule(loops="mnmk", pack="a", block={"m": _LINE}, vectorize="m")
