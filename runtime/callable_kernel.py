"""The class ``CallableKernel``: load a compiled kernel, and call it on arrays.

In goes an entry of the cache with the signature of the kernel's C function. Out comes an
object that checks the arrays of each call and runs the function, natively or emulated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Union, overload

import numpy as np

from tilewright.errors import SpecError, TargetError
from tilewright.plan.formats.named import format_named
from tilewright.runtime.arrays.dtypes import FOREIGN
from tilewright.runtime.arrays.kinds import finished
from tilewright.runtime.call.arguments import Arranger
from tilewright.runtime.call.descriptor import descriptor
from tilewright.runtime.call.session import ask_consent
from tilewright.runtime.machine import host, threadpools
from tilewright.runtime.machine.target_table import Identity
from tilewright.runtime.store.cache import Entry
from tilewright.runtime.store.damaged import DamagedError, check_whole
from tilewright.runtime.threads import process as threads
from tilewright.spec.gemm import Spec
from tilewright.spec.signature import PackedBytes, Signature, signature

from .call import dispatch

if TYPE_CHECKING:
    from tilewright.isa.target import Target
    from tilewright.runtime.call.argument_checks import Checked
    from tilewright.runtime.call.frame import Frame
    from tilewright.runtime.call.packed_matrix import PackedMatrix


#: Type hints for numpy users. ``Array`` is a result; ``Given`` is what they pass for an operand.
Array = np.ndarray[Any, Any]
Given = Union[Array, Sequence[Array], "PackedMatrix", None]


def _with_formats(found: Signature, spec: Spec, texts: Mapping[str, str]) -> Signature:
    """Return the signature, with the formats of packed operands added if there are any.

    ``texts`` are those of the formats, by operand.
    """
    if not texts:
        return found
    return signature(spec, {name: _known(text) for name, text in texts.items()})


def _known(text: str) -> Any:
    """Return the format of this text; DamagedError if there is none."""
    if (form := format_named(text)) is None:
        raise DamagedError(f"its manifest has an unknown format: {text!r:.80}")
    return form


class CallableKernel:
    """The part of a kernel that is needed for calls; ``Kernel`` adds everything else."""

    __slots__ = (
        "__weakref__", "_arrange", "_call_scalars", "_entry", "_fast", "_fast_out", "_foreign",
        "_functions", "_inputs", "_keep", "_new", "_numba", "_output", "_signature", "_symbol",
        "_target", "attempt_new", "emulated", "name", "spec", "target",
    )  # fmt: skip
    name: str
    spec: Spec
    target: str
    emulated: str | None
    #: C function that takes a tuple of input tensors in the signature's order. It returns a new
    #: output, or None if the tensors need checks that only Python can do.
    attempt_new: Callable[[tuple[Any, ...]], Any]

    def __init__(
        self, name: str, spec: Spec, signature: Signature, target: Identity, entry: Entry
    ) -> None:
        self.name, self.spec, self.target = name, spec, target.name
        self._target, self._entry = target, entry
        self._numba: Callable[..., Any] | None = None
        self._signature = _with_formats(signature, spec, entry.manifest["formats"][name])
        self._arrange = Arranger(self._signature)
        self._output = self._signature.arrays.index(self._signature.output)
        self._foreign = any(p.type in FOREIGN for p in self._signature.arrays)
        self._call_scalars: Any = _undecided
        self.attempt_new = _nothing
        self._symbol = 0
        # The C function for calls without scalars, and the index of the array that such a call
        # returns. Both are in one attribute, so that a call reads them at once.
        self._fast: tuple[Any, int] = _undecided, self._output
        self._fast_out = self._fast
        self._functions = 0, 0
        # The number of arrays in a call without an output, and the function that makes a numpy
        # output.
        self._inputs, self._new = self._arrange.inputs, self._arrange.new_array
        means = entry.manifest["means"]
        self.emulated = None if means == "native" else means
        if self.emulated is None:
            self._load()
        else:
            check_whole(str(entry.library))

    def _load(self) -> None:
        """Load the library and pack the data that the dispatcher needs."""
        library = self._entry.library
        host.check_thread(self._target)
        if self._target.unit:
            ask_consent(self._target.unit, self._target.consent)
        self._symbol = dispatch.symbol(library, self.name)
        invoke = dispatch.symbol(library, f"{self.name}_invoke")
        scratch_bytes = dispatch.symbol(library, f"{self.name}_scratch_bytes")
        self._functions = invoke, scratch_bytes
        offsets = {
            p.name: np.array(p.static_offsets, np.int64)
            for p in self._signature.arrays
            if p.static_offsets is not None
        }
        static = {name: dispatch.address(block) for name, block in offsets.items()}
        words = descriptor(self._signature, self._functions, static)
        self._keep = (words, static, offsets)
        threads.attach(library)
        threadpools.register()
        found = dispatch.dispatcher()
        self._call_scalars, self.attempt_new = found.call_scalars(words), found.call_new(words)
        if self._arrange.by_position:
            # A matrix D is never passed by position.
            has_d = self._signature.output.name == "d"
            fast = found.call(words), self._output
            if not has_d:
                self._fast = fast
            if has_d or self._signature.allocates:
                self._fast_out = fast

    # --- calling -------------------------------------------------------------------------------

    @overload
    def __call__(self, a: Given, *more: Given, out: Array | None = None, **named: Any) -> Array: ...
    @overload
    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any: ...
    def __call__(self, *arrays: Any, out: Any = None, **named: Any) -> Any:
        """Run the kernel and return the output.

        A product is ``kernel(a, b, c)``, which updates C. ``kernel(a, b, out=c)`` does the same.
        ``kernel(a, b)`` makes a new C, which needs beta 0. If the spec has a D, a call is
        ``kernel(a, b, out=d)``; ``c=`` is passed if and only if beta is not 0. A transposition is
        ``kernel(x, out)`` or ``kernel(x)``.

        Parameters
        ----------
        *arrays : array_like
            Operands in order: arrays of numpy, CPU tensors of PyTorch, or objects with DLPack or a
            buffer.
        out : array_like, optional
            Array for the result. By default a new one is made, of the same kind as the first array.
        **named
            Scales, zero points, scalars, offsets and named outputs. A single value may be a number.

        Returns
        -------
        array or tuple of arrays
            The result, which is ``out`` if it was passed. Outputs that the spec names and the call
            leaves out follow it: ``d, amax = kernel(a, b)``. Types that numpy lacks are those of
            ml_dtypes; without ml_dtypes the result holds their bits as integers.

        Raises
        ------
        ArgumentError
            An argument does not fit. Nothing was written.
        """
        if named:
            return self._general(arrays, named if out is None else {"out": out, **named})
        if out is None:
            call, output = self._fast
            if call(arrays) == 0:
                return arrays[output]
            if len(arrays) == self._inputs:
                return self._made(arrays, output)
            return self._general(arrays, named)
        call, _ = self._fast_out
        given = arrays
        # This is faster than ``given = (*arrays, out)``.
        given += (out,)
        if call(given) == 0:
            return out
        return self._general(arrays, {"out": out})

    def _made(self, arrays: tuple[Any, ...], output: int) -> Any:
        """Return a new output for a call that passes only the inputs, all by position."""
        if arrays and type(arrays[0]) is not np.ndarray:
            if (made := self.attempt_new(arrays)) is not None:
                return made
        elif self._new is not None:
            given = arrays
            given += (self._new(arrays),)
            if self._fast_out[0](given) == 0:
                return given[output]
        return self._general(arrays, {})

    def _general(self, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Run any call: with names, without an output, or one that the C code could not decide."""
        arrays, scalars = self._arrange(positional, named)
        status = self._call_scalars(arrays, *_two(scalars))
        if status == dispatch.UNDECIDED:
            status = self._decide(arrays, scalars)
        if status == dispatch.NO_MEMORY:
            raise MemoryError(f"{self.name}: no memory for the kernel's scratch buffer")
        out = self._returned(arrays, arrays[self._output], positional, named)
        if not (left := self._arrange.left_out(named)):
            return out
        made = (self._returned(arrays, arrays[place], positional, named) for place in left)
        return out, *made

    def _returned(
        self, arrays: tuple[Any, ...], out: Any, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """Return an output of a call, a new one as an array of the first argument's library."""
        if type(out) is not np.ndarray or type(arrays[0]) is np.ndarray:
            return out
        return out if _given(out, positional, named) else finished(arrays[0], out)

    def attempt(self, arrays: tuple[Any, ...], *scalars: float) -> bool:
        """Run the kernel if the C dispatcher accepts the arrays. Return True if the kernel ran.

        ``arrays`` are in the signature's order, the output included. If the result is False,
        nothing ran: make an ordinary call, which checks in Python.
        """
        return self._call_scalars(arrays, *_two(scalars)) == dispatch.DONE  # type: ignore[no-any-return]

    def _decide(self, arrays: tuple[Any, ...], scalars: tuple[float, ...]) -> int:
        """Check a call that the C dispatcher did not accept, and run it if the arrays fit.

        Raises ArgumentError if they do not fit.
        """
        checked = self._check(arrays)
        if self.emulated is not None:
            return self._emulate(checked, scalars)
        if any(hasattr(type(given), "__dlpack_c_exchange_api__") for given in arrays):
            from tilewright.runtime.call.tensor_types import learn

            for given in arrays:
                learn(given)
        if self._foreign:
            self._learn_dtypes()
        return dispatch.dispatcher().run(self._framed(checked, scalars).address)

    def _check(self, arrays: tuple[Any, ...]) -> Checked:
        from tilewright.runtime.call.argument_checks import check

        return check(self._signature, arrays)

    def _framed(
        self, checked: Checked, scalars: tuple[float, ...], given: tuple[Any, ...] = ()
    ) -> Frame:
        from tilewright.runtime.call.frame import Frame

        return Frame(self._functions, checked, scalars, given)

    def _learn_dtypes(self) -> None:
        """Tell the dispatcher the dtypes of ml_dtypes, if it was imported after kernel creation."""
        if self.emulated is None and "ml_dtypes" in sys.modules:
            words, static, _ = self._keep
            words[:] = descriptor(self._signature, self._functions, static)
            self._foreign = False

    def bind(self, *arrays: Any, **named: Any) -> partial[int]:
        """Check the arguments once, and return a function that runs the kernel on them.

        Parameters
        ----------
        *arrays, **named
            The arguments of a call. Without an output a new one is made, once.

        Returns
        -------
        functools.partial
            Function without arguments. It returns 0, or 2 if there was no memory for the kernel's
            scratch buffer. The function keeps the arrays alive, in its attribute ``arrays``;
            ``out`` is the output. It owns scratch memory, which other calls do not use.

        Raises
        ------
        ArgumentError
            An argument does not fit.
        TargetError
            The kernel is emulated.

        Examples
        --------
        >>> a, b = np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)
        >>> call = tw.compile(tw.Gemm(4, 4, 4)).bind(a, b)
        >>> call(), float(call.out[0, 0])
        (0, 4.0)
        """
        self._native("bind")
        frame = self.frame(*arrays, **named)
        frame.own_scratch()
        bound = partial(dispatch.dispatcher().run, frame.address)
        vars(bound).update(kernel=self, frame=frame, arrays=frame.arrays)
        vars(bound).update(out=frame.arrays[self._output])
        return bound

    def frame(self, *arrays: Any, **named: Any) -> Frame:
        """Return the checked arguments of one call in the form that the dispatcher takes."""
        held, scalars = self._arrange(arrays, named)
        return self._framed(self._check(held), scalars, held)

    def _emulate(self, checked: Checked, scalars: tuple[float, ...]) -> int:
        from tilewright.runtime.emulate.calls import call, runner

        found = runner(self._entry.library, self.isa)
        call(found, self.name, self._signature, checked, scalars)
        return dispatch.DONE

    def _native(self, what: str) -> None:
        if self.emulated is not None:
            raise TargetError(
                f"{what} needs a CPU with {self._target.title}",
                got=f"here the kernel is emulated ({self.emulated})",
                hint="call the kernel, or compile it for target='host'",
            )

    # --- what it is ----------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """The C function's parameters, in order."""
        return self._signature

    @property
    def formats(self) -> dict[str, str]:
        """The formats of packed matrices by the names of the kernel's arrays.

        A format is a text, as ``PackedMatrix.format``; equal formats are equal texts. It has the
        matrix's sizes, or "any size" if they are known only at the call. ``tw.Packed`` takes it.

        Examples
        --------
        >>> last = tw.compile(tw.Gemm(8, 4, 16, a=tw.Packed("f32", mb=4)))
        >>> last.formats["a"]
        'f32 as f32, 8x16 in groups of 1 along k, panels of 4 rows'
        >>> first = tw.compile(tw.Gemm(8, 16, 2, d=tw.Packed("f32", format=last.formats["a"])))
        >>> first.formats["d"] == last.formats["a"]
        True
        """
        return {p.name: p.format for p in self._signature.arrays if p.format}

    @property
    def isa(self) -> Target:
        """The target's description: instructions, registers and costs."""
        return self._target.description

    @property
    def functions(self) -> tuple[int, int]:
        """Addresses of the kernel's C functions ``<name>_invoke`` and ``<name>_scratch_bytes``.

        The first calls the kernel with its arguments in arrays. The second returns the scratch
        memory in bytes.
        """
        self._native("functions")
        return self._functions

    @property
    def address(self) -> int:
        """Address of the C function, for numba, Cython, ctypes and C; see ``c_declaration``."""
        self._native("address")
        return self._symbol

    @property
    def numba(self) -> Callable[..., Any]:
        """The kernel as a function for numba's nopython code and parallel loops: ``f(a, b, c)``.

        It takes the arrays in the order of ``c_declaration``, with outputs, then alpha and beta if
        they are arguments of the call. Types are checked when numba compiles the caller. Sizes,
        strides and overlap are checked at each call, without allocating memory. An array that does
        not fit raises ValueError. Types that numba lacks are passed as integers with the same bits.
        A packed B is passed as its bytes, ``packed.data``, with one row for each matrix of a batch.
        Nothing checks that these bytes have the right format. Callers may be compiled with
        ``cache=True``: numba compiles them again if the kernel changes, for example after a tuning.
        A call from Python calls the kernel.
        """
        self._native("numba")
        if any(isinstance(size, PackedBytes) for p in self._signature.arrays for size in p.shape):
            raise SpecError(
                "numba cannot check the bytes of a packed matrix whose sizes only the call knows",
                got=self.spec,
                hint="sizes that are ints",
            )
        if self._numba is None:
            from tilewright.runtime.arrays.numba_calls import NumbaFunction

            self._numba = NumbaFunction(self, self._entry.key, self._in_order)
        return self._numba

    def _in_order(self, *given: Any) -> Any:
        """Call the kernel with numba's arguments: in C's order, packed matrices as bytes."""
        from tilewright.runtime.call.packed_matrix import matrix_of

        arrays, scalars = self._signature.arrays, self._signature.scalars
        names = [*(p.name for p in arrays), *(p.name for p in scalars)]
        named = dict(zip(names, given, strict=True))
        packed = {p.name: matrix_of(p.format, named[p.name]) for p in arrays if p.packed}
        return self(**{**named, **packed})


def _given(array: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> bool:
    return any(array is value for value in (*positional, *named.values()))


def _undecided(*_: Any) -> int:
    return dispatch.UNDECIDED


def _nothing(_: tuple[Any, ...]) -> None:
    return None


def _two(scalars: tuple[float, ...]) -> tuple[float, float]:
    first, second = (*scalars, 0.0, 0.0)[:2]
    return first, second
