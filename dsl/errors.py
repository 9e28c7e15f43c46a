"""Every error a user can meet: what was got, what was expected, where, and what to try."""

from __future__ import annotations

import os
import sys

#: Code that is nobody's call: ours, and what runs our threads.
_PACKAGES = ("tilewright", "concurrent", "threading")


def _caller() -> str | None:
    """The innermost frame outside tilewright, as ``file:line``; None if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _PACKAGES:
            return f"{os.path.relpath(frame.f_code.co_filename)}:{frame.f_lineno}"
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def _shown(value: object) -> str | None:
    """A value as a message shows it; None for None. What cannot be printed is its type."""
    if value is None or isinstance(value, str):
        return value
    try:
        return repr(value)
    except Exception:  # noqa: BLE001, a message about a wrong value must not fail on it
        return f"a value of type {type(value).__name__} that cannot be printed"


class TilewrightError(Exception):
    """Root of all errors raised by tilewright.

    ``problem`` is one sentence; ``got`` and ``expected`` are shown with ``repr`` unless they
    are strings; ``hint`` says what to try. ``where`` is the caller's file and line.
    """

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
        self.where = where if where is not None else _caller()
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
    """The spec says something that has no meaning."""


class ScheduleError(TilewrightError):
    """The schedule cannot be applied to this spec."""


class PlanError(TilewrightError):
    """No plan fits the target, or a program broke one of its own rules."""


class TargetError(TilewrightError):
    """The target is unknown, or cannot do what was asked on this machine."""


class ToolchainError(TilewrightError):
    """No compiler, or it failed."""


class CacheError(TilewrightError):
    """The cache directory cannot be used, or must not be."""


class VerificationError(TilewrightError):
    """A kernel's result differs from the reference."""


class TuningError(TilewrightError):
    """A tuning cannot begin, or none of its variants could be measured."""


class ArgumentError(TilewrightError):
    """An array or a number given to a kernel does not fit its signature."""


class ArgumentValueError(ArgumentError, ValueError):
    """An argument of the right kind has a wrong value, shape or layout."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument is of the wrong kind or dtype, is missing, or is one too many."""
