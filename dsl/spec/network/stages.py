"""Define ``Stages``, the schedule of a network: which of its stages share a loop over rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import ScheduleError, ScheduleTypeError
from tilewright.keywords import spelled

from ..schedule import Schedule
from ..sizes import MAX_FIXED, call_text, whole_number

#: The places of functions after a product, from the nearest to the sums to the farthest.
PLACES = ("accumulators", "slice", "rows", "whole")


@spelled(ScheduleTypeError)
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Stage:
    """Products and row programs of a network that run together, one block of rows after another.

    Parameters
    ----------
    names : str
        The names that ``kernel.explain()`` prints, in the order in which they run, separated by
        spaces. A product is named after its weight, another stage after its function and a number,
        for example ``softmax0``. ``attention0`` is the name of the stages of an attention.
    rows : int, optional
        The rows of a block; the most rows if threads share the blocks. Each call then cuts its rows
        into blocks of equal height, so that all threads get the same number of them. Rows are
        counted through all leading axes if all named stages can do so. Otherwise, as in attention,
        leading axes are loops around the blocks, and a block has rows of one matrix. By default,
        each product or row program computes all rows before the next one begins.
    at : dict, optional
        Places of functions, by the names that ``kernel.explain()`` prints. A function of elements
        after a product is computed in "accumulators" by default, before the sums are stored. At
        "rows" it is a row program of the same stage, at "whole" one of its own. "slice" is a part
        of a block that was just stored; no function can be there yet.

    Raises
    ------
    ScheduleError
        There is no name, or the number of rows or a place is not possible.

    Examples
    --------
    >>> tw.Stage("up down", rows=64)
    Stage('up down', rows=64)
    """

    names: tuple[str, ...]
    rows: int | None
    at: tuple[tuple[str, str], ...]

    def __init__(
        self, names: str, rows: int | None = None, *, at: Mapping[str, str] | None = None
    ) -> None:
        said: Any = names
        given = said.split() if isinstance(said, str) else []
        if not given:
            raise ScheduleError(
                "a stage has the names of its products and row programs",
                got=names,
                expected="a text of names, as kernel.explain() prints them",
                hint='tw.Stage("up down", rows=64)',
            )
        count = None if rows is None else whole_number(rows)
        if rows is not None and (count is None or not 1 <= count <= MAX_FIXED):
            raise ScheduleError(
                "rows must be a positive int", got=rows, expected="1 to 2**48, or None"
            )
        object.__setattr__(self, "names", tuple(given))
        object.__setattr__(self, "rows", count)
        object.__setattr__(self, "at", _places(at))

    def __repr__(self) -> str:
        options: dict[str, tuple[object, object]] = {
            "rows": (self.rows, None), "at": (dict(self.at), {}),
        }  # fmt: skip
        return call_text("Stage", [" ".join(self.names)], options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _stage, (self.names, self.rows, self.at)


@spelled(ScheduleTypeError)
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Stages(Schedule):
    """The schedule of a network: its stages, and schedules of its products.

    Stages change no bit of a result. A product or row program that no stage names computes all
    rows before the next one begins: ``tw.Stages()`` is a schedule without loops over blocks.

    Parameters
    ----------
    *stages : Stage
        The stages that have blocks of rows, in the order in which they run.
    products : dict, optional
        A ``Schedule`` for a product, by its name. Its tile, loops, blocks of m and n, packing,
        tails and prefetching may be chosen.
    threads : int, optional
        The number of threads. They share the blocks of a stage equally.

    Raises
    ------
    ScheduleError
        An argument has another type, or two stages have one name.

    Examples
    --------
    >>> weights = {"up": tw.Tensor("f32", (16, 64)), "down": tw.Tensor("f32", (64, 16))}
    >>> perceptron = tw.network(lambda x, w: tw.relu(x @ w.up) @ w.down)
    >>> spec = perceptron.of(x=tw.Tensor("f32", (tw.dim("rows"), 16)), w=weights)
    >>> net = tw.compile(spec, tw.Stages(tw.Stage("up down", rows=32)))
    >>> net.schedule
    Stages(Stage('up down', rows=32))
    """

    stages: tuple[Stage, ...]
    products: tuple[tuple[str, Schedule], ...]

    def __init__(
        self,
        *stages: Stage,
        products: Mapping[str, Schedule] | Sequence[tuple[str, Schedule]] | None = None,
        threads: int | None = None,
    ) -> None:
        Schedule.__init__(self, threads=threads)
        object.__setattr__(self, "stages", _checked(stages))
        object.__setattr__(self, "products", _products(products))

    def __repr__(self) -> str:
        options: dict[str, tuple[object, object]] = {
            "products": (dict(self.products), {}), "threads": (self.threads, None),
        }  # fmt: skip
        return call_text("Stages", self.stages, options)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.stages, self.products, self.threads)

    def of_product(self, name: str) -> Schedule:
        """Return the schedule that the user chose for a product."""
        return dict(self.products).get(name, Schedule())


def schedule_of(said: Mapping[str, Any]) -> Schedule:
    """Return the schedule whose fields are ``said``, as ``dataclasses.asdict`` returns them."""
    if "stages" not in said:
        return Schedule(**said)
    stages = (_stage(each["names"], each["rows"], each["at"]) for each in said["stages"])
    products = {name: Schedule(**each) for name, each in said["products"]}
    return Stages(*stages, products=products, threads=said["threads"])


def _stage(names: Sequence[str], rows: int | None, at: Any) -> Stage:
    return Stage(" ".join(names), rows, at=dict(at))


def _places(at: Any) -> tuple[tuple[str, str], ...]:
    found = at if isinstance(at, Mapping) else None if at is not None else {}
    if found is None or not all(isinstance(name, str) and p in PLACES for name, p in found.items()):
        raise ScheduleError(
            "at has a place for a function, by name", got=at, expected=", ".join(map(repr, PLACES)),
            hint='at={"relu0": "rows"}',
        )  # fmt: skip
    return tuple(sorted(found.items()))


def _again(stages: tuple[Stage, ...], products: Any, threads: int | None) -> Stages:
    return Stages(*stages, products=products, threads=threads)


def _checked(stages: Sequence[Any]) -> tuple[Stage, ...]:
    seen: set[str] = set()
    for stage in stages:
        if not isinstance(stage, Stage):
            raise ScheduleError(
                "the stages of a network are tw.Stage", got=stage,
                hint='tw.Stages(tw.Stage("up down", rows=64))',
            )  # fmt: skip
        for name in stage.names:
            if name in seen:
                raise ScheduleError(f"{name!r} is named twice", got=stages, hint="name it once")
            seen.add(name)
    return tuple(stages)


#: The fields of the schedule of a product that change no bit of the result.
OPEN = ("tile", "loops", "block", "pack", "tails", "prefetch", "k_unroll")


def _products(products: Any) -> tuple[tuple[str, Schedule], ...]:
    try:
        found = dict(products or {})
    except (TypeError, ValueError):
        found = {None: products}  # refused below
    for name, schedule in found.items():
        if not isinstance(name, str) or not isinstance(schedule, Schedule):
            raise ScheduleError(
                "products has a tw.Schedule for a product, by name", got=products,
                hint='products={"up": tw.Schedule(tile=(8, 32))}',
            )  # fmt: skip
        kept = {each: getattr(schedule, each) for each in OPEN}
        own = isinstance(schedule, Stages) or schedule != Schedule(**kept)
        if own or "k" in dict(schedule.block):
            raise ScheduleError(
                f"the schedule of {name!r} chooses what a network fixes",
                got=schedule,
                expected=f"{', '.join(OPEN)}; no blocks of k",
                hint="tw.Stages(..., threads=2) for threads",
            )
    return tuple(sorted(found.items()))
