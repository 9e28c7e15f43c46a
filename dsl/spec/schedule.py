"""Define ``Schedule``: how a product is computed. Also limits by which the planner chooses."""

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
#: Smallest m, n and k for which it is faster to pack operands in blocks that fit the caches.
LARGE = (32, 32, 64)
#: If C has at least this many rows, packing B is faster, because each element is read often.
MANY_ROWS = 128
#: Maximum number of elements in a row of a thin C (for order F: in a column). Only one operand is
#: packed, because packed blocks of the other would be read too rarely. For example, this makes
#: 3136x64x576 in f32 1.5 times as fast on Granite Rapids.
THIN = 128
#: Elements of K in a block of the packed operand of a thin product. L2 holds such a block, so each
#: element of the other operand is read from memory only once.
_THIN_STEPS = 1024
#: If K is below ``LARGE``, this many elements of a row of C (column for order F) are written before
#: the next row is begun. C is then written in long stretches, and the packed operand stays in L2.
_LINE = 2048
#: Maximum number of rows of A that stay in L2 during the whole product, together with blocks of B
#: (for order F: columns of B, with blocks of A).
NEAR_LINES = 256
#: Number of rows of B that a product with few rows reads at the same time. A core prefetches about
#: this many. For example, 4x4096x4096 in f32 takes 2.5 ms on Zen 4, and 6.4 ms with 64 rows.
LINES = 8
#: Pairs (rows, work): B is streamed if C has at most ``rows`` rows and m n k is at least ``work``,
#: for 4-byte elements. Streaming reads B once. For example, it makes 8x8192x8192 in f32 2.2 times
#: as fast on Emerald Rapids.
_STREAMS = ((1, 1 << 16), (4, 1 << 19), (8, 1 << 25), (16, 5 << 25))
FEW_ROWS = _STREAMS[-1][0]
#: Cache lines are prefetched this many steps of K before they are used. For example, 120x1024x2048
#: in f64 takes 1.13 times as long with 8 steps on Emerald Rapids.
STEPS_AHEAD = 4
#: Maximum number of rows of C for which B is read in place, not packed, even if B has long rows:
#: see ``line_in_place``.
HALF_ROWS = MANY_ROWS // 2


def large_work(rows: int) -> int:
    """Return the value of m n k from which a product with ``rows`` rows counts as large.

    With few rows, B must also exceed L2.
    """
    return 1 << 26 if rows < MANY_ROWS else 1 << 25


def line_in_place(rows: int, near: int) -> int:
    """Return the longest row of B, in bytes, for which B is read in place if C has ``rows`` rows.

    Packing takes as long as 14 rows of the product. For example, 49x512x4608 in f32 takes 2.0 ms
    with packing on Emerald Rapids, and 1.8 ms in place. A block of K and C must stay in L2, which
    has ``near`` bytes, from one row of tiles to the next. Longer rows of B do not allow that.
    """
    if rows >= MANY_ROWS:
        return 0
    return near // (256 if rows <= HALF_ROWS else 1024)


def large_converted(*, unit: bool) -> tuple[int, int, int]:
    """Return the smallest m, n and k for which operands are converted block by block.

    The blocks are converted while they are packed. This is slower for few columns, but faster for
    few rows if B is large. An operand that is converted as a whole goes to memory and back, through
    pages that are new in each call. For example, 4x4096x4096 in bf16 takes 21 ms as a whole on Zen
    4, and 2.8 ms in blocks. Without a matrix unit, blocks are also slower for rows of ``THIN``
    elements: 784x128x1152 in f16 reaches 149 GFLOPS as a whole on Emerald Rapids, and 131 GFLOPS in
    blocks. ``unit`` is True if a matrix unit computes the product.
    """
    return 2, THIN if unit else THIN + 1, 64


#: Value of m n k from which operands are converted in blocks, not as a whole, if C has many rows.
#: For example, 196x256x2304 in f16 was 2.8 times as fast in blocks.
CONVERTED_WORK = 1 << 26
#: Least sizes of a matrix that is converted in blocks even if C has few rows: bytes, and elements
#: of a matrix that is also transposed. Converting the whole matrix first would write to new pages
#: of memory in each call.
_FEW_CONVERTED, _FEW_TURNED = 1 << 24, 1 << 20
#: Maximum number of rows of C for which 16-bit and 8-bit types are multiplied by vectors along K.
#: For more rows, packed blocks are faster. Targets with fewer vector registers than this use their
#: number of registers as the limit.
FEW_ALONG_K = 32
#: Maximum number of rows of C for which vectors along K are faster than a matrix unit. For example,
#: 4 rows by 2048x2048 in bf16 take 0.46 ms on Emerald Rapids, and 0.54 ms in the matrix unit.
FEW_BESIDE_UNIT = 4
#: Maximum number of rows of C for which a kernel for a matrix unit reads B in place, if B is
#: contiguous along K. For example, 16 rows by 2048x2048 take 0.52 ms, and 0.75 ms if B is
#: transposed first.
FEW_IN_MATRICES = 31


def converted_work(rows: int, itemsize: int, *, turned: bool = False) -> tuple[int, int, int]:
    """Return the m n k from which operands are converted in blocks, and for which rows this holds.

    The result is (first row, last row, m n k). ``itemsize`` is the size of a converted element in
    bytes. ``turned`` is True if the matrix is transposed too.
    """
    first, each = 1, _FEW_TURNED if turned else _FEW_CONVERTED // itemsize
    while first * each < CONVERTED_WORK:
        if rows < 2 * first:
            return first, 2 * first - 1, first * each
        first *= 2
    return first, MAX_SIZE, CONVERTED_WORK


def streams(rows: int, itemsize: int = 4) -> tuple[int, int, int] | None:
    """Return the m n k from which B is streamed for ``rows`` rows of C; None for too many rows.

    The result is (first row, last row, m n k): the limit is the same for all rows of this range.
    ``itemsize`` is the size of an element of B in bytes.
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
    """A way to compute a product. ``None`` leaves a choice to the cost model.

    Parameters
    ----------
    tile : (int, int), optional
        Register tile (mr, nr): rows by columns of C whose sums stay in registers.
    loops : str, optional
        The loops, outermost first: ``b`` (batch), ``m``, ``n``, ``k``. Letters before the last
        ``m`` or ``n`` are loops over blocks. After it, the sums stay in registers. ``M`` and ``N``
        run in parallel: "NMk" distributes all tiles of C and gives the same bits as "nmk".
    block : mapping, optional
        Step of the earlier of two loops with one letter, for example ``{"n": 64, "k": 128}``. By
        default as large as the target's caches hold. Pairs are accepted too, so a Schedule survives
        ``dataclasses.asdict`` and JSON.
    k_unroll : int, optional
        Steps of K in one trip of the innermost loop.
    k_split : int, optional
        Sets of accumulators that share the steps of K.
    vectorize : {"m", "n", "k", "b"}, optional
        Dimension along which vectors run; "b" is for stacks.
    pack : {"a", "b", "ab"}, optional
        Operands that are copied into the order in which tiles read them.
    tails : {"auto", "mask", "narrow", "overlap", "bounce"}
        How tails (what whole tiles leave over) are computed: by masks, partial loads and stores,
        overlapping tiles, or a copy on the stack.
    prefetch : int, optional
        How many steps of K ahead the operand along the vectors is prefetched; blocks of K for a
        quantized B. An operand that was packed just before is in the cache and is not prefetched.
    threads : int, optional
        Most threads; by default one for each CPU that the process may use. With ``threads`` and
        without ``loops``, m and n run in parallel. A call that is too short to gain, or that finds
        the threads busy, runs on one.
    stores : {"stream", "cached"}, optional
        "stream" writes C to memory past the caches, in whole aligned vectors.
    unpack_rows : int, optional
        Rows of C from which a quantized B is unpacked before tiles read it, if A is floating point.
        Fewer rows unpack it while they load it. If A is integers: rows from which a matrix unit
        multiplies.

    Raises
    ------
    ScheduleError
        A value is not possible.

    Examples
    --------
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
    """Pairs (letter, block size), printed for example as ``dict(k=128)``, also in generated C."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"dict({', '.join(f'{letter}={size}' for letter, size in self)})"


#: Largest value of each field of a schedule. Limits of registers and sizes are checked by the plan.
_MOST = {"tile": 2**16, "block": MAX_FIXED, "k_unroll": 2**10, "k_split": 2**10,
         "prefetch": 2**20, "threads": 2**12, "unpack_rows": 2**31}  # fmt: skip


def _whole(value: Any, name: str) -> int | None:
    """Return ``value`` as an int if it is from 1 to the limit of field ``name``, else None."""
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
    """Return pairs (letter, size), sorted by letter, from a mapping or from a list of pairs."""
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


# --- schedules for a C with many rows (``along`` "n") or many columns (``along`` "m") -------------


def of_thin(along: Literal["m", "n"]) -> Schedule:
    """Return the schedule for a C whose rows have at most ``THIN`` elements.

    One operand is packed. For example, on Emerald Rapids 3136x64x576 in f32 has 157 GFLOPS this
    way, and 138 GFLOPS if the loop over columns of tiles is outside the loop over rows.
    """
    block = {"k": _THIN_STEPS}
    if along == "n":
        return Schedule(loops="kMnk", pack="b", block=block, vectorize="n")
    return Schedule(loops="kNmk", pack="a", block=block, vectorize="m")


def of_short_sums(along: Literal["m", "n"]) -> Schedule:
    """Return the schedule for a K below ``LARGE``, which writes rows of C in long stretches.

    For example, on Emerald Rapids 12544x96x16 in f32 has 128 GFLOPS this way, and 102 GFLOPS if B
    is read in place.
    """
    if along == "n":
        return Schedule(loops="nmnk", pack="b", block={"n": _LINE}, vectorize="n")
    return Schedule(loops="mnmk", pack="a", block={"m": _LINE}, vectorize="m")


def of_shares(along: Literal["m", "n"], lines: int, steps: int) -> Schedule:
    """Return the schedule in which each thread packs panels of one operand for itself.

    The operand is B (``along`` "n") or A ("m"). A panel has ``lines`` of its columns or rows, and
    ``steps`` steps of K. While a panel is in L1, it is multiplied by all of the other operand. The
    threads wait for each other only once, at the end of the call.
    """
    if along == "n":
        return Schedule(loops="Nknmk", pack="b", block={"n": lines, "k": steps}, vectorize="n")
    return Schedule(loops="Mkmnk", pack="a", block={"m": lines, "k": steps}, vectorize="m")
