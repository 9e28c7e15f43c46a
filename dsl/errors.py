"""Every error a user can meet: what was got, what was expected, where, and what to try."""

from __future__ import annotations

import os
import sys
from types import FrameType

#: Code that is nobody's call: ours, what runs our threads, and the frameworks that call operators.
_PACKAGES = ("tilewright", "concurrent", "threading", "torch", "jax")


def caller() -> tuple[str, int, int] | None:
    """Return the innermost frame outside tilewright: its file, its line, and its level, or None.

    The level is the argument ``stacklevel`` of ``warnings.warn``.
    """
    frame: FrameType | None = sys._getframe(1)
    level = 1
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _PACKAGES:
            return frame.f_code.co_filename, frame.f_lineno, level
        frame, level = frame.f_back, level + 1
    return None


def _where() -> str | None:
    """Return the caller's place as ``file:line``, None if there is none."""
    found = caller()
    return None if found is None else f"{os.path.relpath(found[0])}:{found[1]}"


def _shown(value: object) -> str | None:
    """Return a value as a message shows it, None for None. If it cannot be printed, its type is
    named.
    """
    if value is None or isinstance(value, str):
        return value
    try:
        return repr(value)
    except Exception:  # noqa: BLE001, a message about a wrong value must not fail on it
        return f"a value of type {type(value).__name__} that cannot be printed"


def described(value: object) -> str:
    """Return the type of a wrong value and how it prints, cut short.

    >>> described(b"12")
    "bytes: b'12'"
    """
    text = repr(value) if isinstance(value, str | None) else _shown(value)
    return f"{type(value).__name__}: {text:.60}"


class TilewrightError(Exception):
    """Root of all errors raised by tilewright.

    ``problem`` is one sentence; ``got`` and ``expected`` are shown with ``repr`` unless they
    are strings; ``hint`` says what to try. ``where`` is the caller's file and line.

    >>> try:
    ...     tw.compile(tw.Gemm(64, 64, 64), tw.Schedule(tile=(16, 32)), target="avx2")
    ... except tw.TilewrightError as error:
    ...     print(error.hint)
    tile=(...)
    """

    problem: str
    got: str | None
    expected: str | None
    hint: str | None
    where: str | None

    def __init__(
        self,
        problem: str,
        *,
        got: object = None,
        expected: object = None,
        hint: str | None = None,
        where: str | None = None,
    ) -> None:
        self.problem = problem
        self.got = _shown(got)
        self.expected = _shown(expected)
        self.hint = hint
        self.where = where if where is not None else _where()
        super().__init__(self._message())

    def _message(self) -> str:
        rows = (
            ("got", self.got),
            ("expected", self.expected),
            ("at", self.where),
            ("try", self.hint),
        )
        return "\n".join([self.problem, *(f"  {key}: {text}" for key, text in rows if text)])

    def __reduce__(self) -> tuple[object, ...]:
        return (
            _rebuild,
            (type(self), self.problem, self.got, self.expected, self.hint, self.where),
        )


def _rebuild(
    kind: type[TilewrightError],
    problem: str,
    got: str | None,
    expected: str | None,
    hint: str | None,
    where: str | None,
) -> TilewrightError:
    return kind(problem, got=got, expected=expected, hint=hint, where=where)


class SpecError(TilewrightError):
    """The spec says something that has no meaning.

    >>> tw.Gemm(64, 64, 64, a="f33")
    Traceback (most recent call last):
    tilewright.errors.SpecError: unknown element type
      got: f33
    ...
    """


class SpecTypeError(SpecError, TypeError):
    """A part of a spec has no argument of this name, lacks one, or has too many."""


class ScheduleError(TilewrightError):
    """The schedule cannot be applied to this spec.

    >>> tw.Schedule(loops="nmx")
    Traceback (most recent call last):
    tilewright.errors.ScheduleError: loops must name the loops, outermost first
      got: nmx
    ...
    """


class ScheduleTypeError(ScheduleError, TypeError):
    """A schedule has no argument of this name, or too many."""


class PlanError(TilewrightError):
    """No plan fits the target, or a program broke one of its own rules.

    It is a fault of tilewright's, or of a ``lower`` of ``tw.postop``: report it with the spec.

    >>> issubclass(tw.PlanError, tw.TilewrightError)
    True
    """


class TargetError(TilewrightError):
    """The target is unknown, or cannot do what was asked on this machine.

    >>> tw.compile(tw.Gemm(4, 4, 4), target="avx3")
    Traceback (most recent call last):
    tilewright.errors.TargetError: unknown target
      got: avx3
    ...
    """


class EmulationWarning(RuntimeWarning):
    """A kernel is called whose target this CPU lacks: it is emulated, and slow.

    One warning for each target in a process. ``verify`` gives none.

    >>> import warnings
    >>> warnings.simplefilter("ignore", tw.EmulationWarning)
    """


class ToolchainError(TilewrightError):
    """No compiler, or it failed.

    >>> path = tw.compile(tw.Gemm(4, 4, 4)).edit("edited.c")
    >>> size = path.write_text(path.read_text() + "this is no C;")
    >>> tw.compile(tw.Gemm(4, 4, 4), source=path)
    Traceback (most recent call last):
    tilewright.errors.ToolchainError: ...
    """

    @property
    def brief(self) -> str:
        """The problem and the compiler's first error, on one line."""
        lines = (self.got or "").splitlines()
        said = next((line for line in lines if "error" in line), *lines[:1] or [""])
        return f"{self.problem}: {said}" if said else self.problem


class CacheError(TilewrightError):
    """The cache directory cannot be used, or must not be.

    >>> Path("file").touch()
    >>> os.environ["TILEWRIGHT_CACHE_DIR"] = "file"
    >>> tw.compile(tw.Gemm(4, 4, 4))
    Traceback (most recent call last):
    tilewright.errors.CacheError: the cache directory ...file is no directory
    ...
    """


class VerificationError(TilewrightError):
    """A kernel's result differs from the reference.

    >>> @tw.postop(reference=lambda x: x + 1, ulps=1)
    ... def halved(x):
    ...     return x / 2
    >>> tw.compile(tw.Gemm(4, 4, 4, epilogue=halved(tw.acc))).verify()
    Traceback (most recent call last):
    tilewright.errors.VerificationError: ...
    """


class TuningError(TilewrightError):
    """A tuning cannot begin, or none of its variants could be measured.

    >>> tw.tune(tw.Gemm(4, 4, 4), search="random")
    Traceback (most recent call last):
    tilewright.errors.TuningError: unknown search
      got: random
    ...
    """


class ArgumentError(TilewrightError):
    """An array or a number given to a kernel does not fit its signature.

    >>> kernel = tw.compile(tw.Gemm(4, 4, 4))
    >>> kernel(np.ones((4, 4)), np.ones((4, 4), np.float32))
    Traceback (most recent call last):
    tilewright.errors.ArgumentTypeError: a has the wrong dtype
      got: float64
      expected: float32
    ...
    """


class ArgumentValueError(ArgumentError, ValueError):
    """An argument of the right kind has a wrong value, shape or layout."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument is of the wrong kind or dtype, is missing, or is one too many."""
