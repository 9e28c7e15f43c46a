"""Define all errors and warnings that users meet.

Each error says what was got, what was expected, where, and what to try.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from types import FrameType

#: Packages whose frames are skipped when the user's code is searched for in the call stack:
#: tilewright, threads, and frameworks that call operators.
_PACKAGES = ("tilewright", "concurrent", "threading", "torch", "jax")


def caller() -> tuple[str, int, int] | None:
    """Return where the user's code called tilewright: file, line, and how many frames up that is.

    The third value is the ``stacklevel`` for ``warnings.warn``. The result is None if there is no
    such frame.
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
    """Return the place of the call in the user's code as ``file:line``; None if unknown."""
    found = caller()
    return None if found is None else f"{os.path.relpath(found[0])}:{found[1]}"


def _shown(value: object) -> str | None:
    """Return a value's text for a message; only its type if the value cannot be printed."""
    if value is None or isinstance(value, str):
        return value
    try:
        return repr(value)
    except Exception:  # noqa: BLE001, an error of repr must not replace the error about the value
        return f"a value of type {type(value).__name__} that cannot be printed"


def described(value: object) -> str:
    """Return the type of a wrong value and its shortened text, for an error message.

    >>> described(b"12")
    "bytes: b'12'"
    """
    text = repr(value) if isinstance(value, str | None) else _shown(value)
    return f"{type(value).__name__}: {text:.60}"


def install(extra: str) -> str:
    """Return the command that installs an extra, for example ``pip install 'torch>=2.13'``.

    The packages are read from the metadata of the installation: tilewright itself is not on PyPI,
    so that ``pip install 'tilewright[...]'`` would fail.
    """
    from importlib.metadata import PackageNotFoundError, requires

    try:
        required = requires("tilewright") or []
    except PackageNotFoundError:
        required = []
    named = [line.partition(";") for line in required]
    packages = [
        package.strip() for package, _, extras in named if re.search(rf"\b{extra}\b", extras)
    ]
    if not packages:
        return f"pip install '.[{extra}]' in the checkout of tilewright"
    return f"pip install {' '.join(map(shlex.quote, packages))}"


class TilewrightError(Exception):
    """Base class of all errors that tilewright raises.

    Parameters
    ----------
    problem : str
        The problem in one sentence.
    got : object, optional
        What was given. Anything but a string is shown by ``repr``.
    expected : object, optional
        What is allowed, shown alike.
    hint : str, optional
        What to try.
    where : str, optional
        File and line. Default: those of the caller outside of tilewright.

    Examples
    --------
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
    """Raised if a spec has no meaning, or cannot be computed.

    Examples
    --------
    >>> tw.Gemm(64, 64, 64, a="f33")
    Traceback (most recent call last):
    tilewright.errors.SpecError: unknown element type
      got: f33
    ...
    """


class SpecTypeError(SpecError, TypeError):
    """Raised if a part of a spec gets an unknown argument, one too many, or one too few."""


class SpecAttributeError(SpecError, AttributeError):
    """A SpecError that is also an AttributeError: an expression or weights have none such."""


class ScheduleError(TilewrightError):
    """Raised if a schedule has no meaning, or cannot be applied to the spec.

    Examples
    --------
    >>> tw.Schedule(loops="nmx")
    Traceback (most recent call last):
    tilewright.errors.ScheduleError: loops must name the loops, outermost first
      got: nmx
    ...
    """


class ScheduleTypeError(ScheduleError, TypeError):
    """Raised if a schedule gets an unknown argument, or one too many."""


class PlanError(TilewrightError):
    """Raised if a plan or a program breaks one of tilewright's own rules.

    This is a fault of tilewright, or of the ``lower`` of a ``tw.postop``. Please report it with the
    spec.

    Examples
    --------
    >>> issubclass(tw.PlanError, tw.TilewrightError)
    True
    """


class TargetError(TilewrightError):
    """Raised if the target is unknown, or cannot be used this way on this machine.

    Examples
    --------
    >>> tw.compile(tw.Gemm(4, 4, 4), target="avx3")
    Traceback (most recent call last):
    tilewright.errors.TargetError: unknown target
      got: avx3
    ...
    """


class EmulationWarning(RuntimeWarning):
    """The warning that a kernel is slow, because this CPU lacks its target and emulates it.

    A process gives one warning for each target. ``verify`` gives none.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("ignore", tw.EmulationWarning)
    """


class ToolchainError(TilewrightError):
    """Raised if there is no compiler, or if the compiler failed.

    Examples
    --------
    >>> path = tw.compile(tw.Gemm(4, 4, 4)).edit("edited.c")
    >>> size = path.write_text(path.read_text() + "this is no C;")
    >>> tw.compile(tw.Gemm(4, 4, 4), source=path)
    Traceback (most recent call last):
    tilewright.errors.ToolchainError: ...
    """

    @property
    def brief(self) -> str:
        """The problem and the compiler's first error on one line."""
        lines = (self.got or "").splitlines()
        said = next((line for line in lines if "error" in line), *lines[:1] or [""])
        return f"{self.problem}: {said}" if said else self.problem


class CacheError(TilewrightError):
    """Raised if the cache or the data directory cannot be used, or is not safe to use.

    Examples
    --------
    >>> Path("file").touch()
    >>> os.environ["TILEWRIGHT_CACHE_DIR"] = "file"
    >>> tw.compile(tw.Gemm(4, 4, 4))
    Traceback (most recent call last):
    tilewright.errors.CacheError: the cache directory ...file is no directory
    ...
    """


class VerificationError(TilewrightError):
    """Raised if a kernel's result differs from the reference by more than the error bound.

    Examples
    --------
    >>> @tw.postop(reference=lambda x: x + 1, ulps=1)
    ... def halved(x):
    ...     return x / 2
    >>> tw.compile(tw.Gemm(4, 4, 4, epilogue=halved(tw.acc))).verify()
    Traceback (most recent call last):
    tilewright.errors.VerificationError: ...
    """


class TuningError(TilewrightError):
    """Raised if a tuning cannot start, or if none of its variants can be measured.

    Examples
    --------
    >>> tw.tune(tw.Gemm(4, 4, 4), search="random")
    Traceback (most recent call last):
    tilewright.errors.TuningError: unknown search
      got: random
    ...
    """


class ArgumentError(TilewrightError):
    """Raised if an argument does not fit the kernel or the function that was called.

    The error is also a ValueError (``ArgumentValueError``) or a TypeError (``ArgumentTypeError``).

    Examples
    --------
    >>> kernel = tw.compile(tw.Gemm(4, 4, 4))
    >>> kernel(np.ones((4, 4)), np.ones((4, 4), np.float32))
    Traceback (most recent call last):
    tilewright.errors.ArgumentTypeError: a has the wrong dtype
      got: float64
      expected: float32
    ...
    """


class ArgumentValueError(ArgumentError, ValueError):
    """Raised if an argument of the right type has a wrong value, shape or layout."""


class ArgumentTypeError(ArgumentError, TypeError):
    """Raised if an argument has the wrong type or dtype, is missing, or is one too many."""
