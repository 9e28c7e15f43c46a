"""The class ``Kernel``: a compiled kernel that is called on arrays, and can describe itself.

It is made from a spec, a schedule, a target and an entry of the cache that holds the compiled
library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, overload

import numpy as np

from tilewright.errors import SpecError, TargetError
from tilewright.runtime.arrays.dtypes import FOREIGN
from tilewright.runtime.arrays.kinds import finished
from tilewright.runtime.call.arguments import Arranger
from tilewright.runtime.call.bound_sizes import given_sizes
from tilewright.runtime.call.descriptor import descriptor
from tilewright.runtime.call.session import Session, ask_consent
from tilewright.runtime.machine import host, threadpools
from tilewright.runtime.machine.target_table import Identity
from tilewright.runtime.store.cache import Entry
from tilewright.runtime.store.damaged import check_whole
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.operands import Packed
from tilewright.spec.pack import Pack, PackQuantized
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import Signature, signature
from tilewright.spec.sizes import Dim

from .call import dispatch
from .edited import GENERATED, Edited, declaration, difference, own_file, write_new
from .pickled import parts

if TYPE_CHECKING:
    from tilewright.explain.decisions import AnyPlan
    from tilewright.isa.target import Target
    from tilewright.runtime.bench.timing import Timing
    from tilewright.runtime.call.argument_checks import Checked
    from tilewright.runtime.call.frame import Frame
    from tilewright.runtime.call.packed_matrix import PackedMatrix
    from tilewright.runtime.reference.verify import Verification
    from tilewright.runtime.tuned import Winner


#: Types of a call's arguments and results for numpy: one array, or a sequence of arrays.
Array = np.ndarray[Any, Any]
Given = Union[Array, Sequence[Array], "PackedMatrix", None]


def _with_formats(found: Signature, spec: Spec, target: Identity) -> Signature:
    """Return the signature with the formats of packed operands; unchanged if nothing is packed.

    The modules for formats are imported only if they are needed.
    """
    packs = isinstance(spec, Pack | PackQuantized)
    if not packs and not (isinstance(spec, Gemm) and isinstance(spec.b, Packed)):
        return found
    from tilewright.plan.formats.lookup import formats_of

    return signature(spec, formats_of(spec, target.description))


class Kernel:
    """A spec compiled for a target, to be called on arrays: ``kernel(a, b, c)``.

    Kernels are made by ``tw.compile``. Each call checks all arrays. The interpreter's lock is
    released while the kernel runs, and several threads may call it at the same time.

    A kernel is pickled as its spec, schedule and target, with the measured numbers of the target's
    core if there are any. Unpickling compiles it, or takes it from the cache.

    Attributes
    ----------
    name : str
        The C function's name.
    spec : Gemm, Transpose, Pack or PackQuantized
        The computation.
    requested : Schedule
        The schedule that was asked for. ``schedule`` is the complete one.
    target : str
        Name of the target, never "host".
    emulated : str or None
        How the kernel runs if the CPU lacks the target: "qemu" or "header". None if it runs
        natively.
    tuned : Winner or None
        The tuning that chose the schedule. None if the caller or the cost model chose it.
    edited : Edited or None
        Hand-edited C that replaces the generated C. None if there is none.

    Examples
    --------
    >>> kernel = tw.compile(tw.Gemm(2, 3, 4))
    >>> a, b, c = (np.ones(shape, np.float32) for shape in ((2, 4), (4, 3), (2, 3)))
    >>> kernel(a, b, out=c) is c
    True
    """

    __slots__ = (
        "__weakref__", "_arrange", "_call_scalars", "_entry", "_fast", "_fast_out", "_foreign",
        "_functions", "_inputs", "_keep", "_new", "_numba", "_output", "_packers", "_plan",
        "_remake", "_signature", "_symbol", "_target", "attempt_new", "edited", "emulated", "name",
        "requested", "spec", "target", "tuned",
    )  # fmt: skip
    name: str
    spec: Spec
    requested: Schedule
    target: str
    emulated: str | None
    tuned: Winner | None
    edited: Edited | None
    #: C function that takes a tuple of input tensors in the signature's order. It returns a new
    #: output, or None if the tensors need checks that only Python can do.
    attempt_new: Callable[[tuple[Any, ...]], Any]

    def __init__(
        self,
        name: str,
        spec: Spec,
        schedule: Schedule,
        signature: Signature,
        target: Identity,
        entry: Entry,
        remake: Callable[..., Kernel],
        tuned: Winner | None = None,
        edited: Edited | None = None,
    ) -> None:
        self.name, self.spec, self.requested, self.tuned = name, spec, schedule, tuned
        self.edited = edited
        self.target = target.name
        self._target, self._entry, self._remake = target, entry, remake
        self._plan: AnyPlan | None = None
        self._numba: Callable[..., Any] | None = None
        self._packers: dict[Spec, Kernel] = {}
        self._signature = _with_formats(signature, spec, target)
        self._arrange = Arranger(self._signature)
        self._output = self._signature.arrays.index(self._signature.output)
        self._foreign = any(p.type in FOREIGN for p in self._signature.arrays)
        self._call_scalars: Any = _undecided
        self.attempt_new = _nothing
        self._symbol = 0
        # The C function for calls without scalars, and the index of the array it returns. They are
        # one attribute, so that a call reads both at once.
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
        threadpools.register()
        found = dispatch.dispatcher()
        self._call_scalars, self.attempt_new = found.call_scalars(words), found.call_new(words)
        if self._arrange.by_position:
            has_d = self._signature.output.name == "d"  # D is never passed by position
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
        given += (out,)  # quicker than (*arrays, out)
        if call(given) == 0:
            return out
        return self._general(arrays, {"out": out})

    def _made(self, arrays: tuple[Any, ...], output: int) -> Any:
        """Return a new output for a call that passes only the inputs, all by position."""
        if type(arrays[0]) is not np.ndarray:
            if (made := self.attempt_new(arrays)) is not None:
                return made
        elif self._new is not None:
            given = arrays
            given += (self._new(),)
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
        """Return an output as the caller gets it: a new one is of the kind of the first array."""
        if type(out) is not np.ndarray or type(arrays[0]) is np.ndarray:
            return out
        return out if _given(out, positional, named) else finished(arrays[0], out)

    def attempt(self, arrays: tuple[Any, ...], *scalars: float) -> bool:
        """Run the kernel if the arrays fit without a closer check, and return True if it ran.

        ``arrays`` are in the signature's order, the output included. If the result is False,
        nothing ran: make an ordinary call, which checks in Python.
        """
        return self._call_scalars(arrays, *_two(scalars)) == dispatch.DONE  # type: ignore[no-any-return]

    def _decide(self, arrays: tuple[Any, ...], scalars: tuple[float, ...]) -> int:
        """Check a call in Python and run it; ArgumentError if the arrays do not fit."""
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
        """Tell the dispatcher the dtypes of a module that was imported after the kernel was
        loaded.
        """
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
            scratch buffer. It keeps the arrays alive. They are its attribute ``arrays``; ``out`` is
            the output.

        Raises
        ------
        ArgumentError
            An argument does not fit.
        TargetError
            The kernel is emulated.
        """
        self._native("bind")
        frame = self.frame(*arrays, **named)
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
                got=f"{self.name} runs here through {self.emulated}",
                hint="call the kernel, or compile it for target='host'",
            )

    # --- what it is ----------------------------------------------------------------------------

    @property
    def signature(self) -> Signature:
        """The C function's parameters, in order."""
        return self._signature

    @property
    def isa(self) -> Target:
        """The target's description: instructions, registers and costs."""
        return self._target.description

    @property
    def functions(self) -> tuple[int, int]:
        """Addresses of two C functions: the call with arguments in arrays, and its scratch memory
        in bytes.
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
        not fit is a ValueError. Types that numba lacks are passed as integers with the same bits. A
        packed B is passed as its bytes, ``packed.data``, with one row for each matrix of a batch.
        Nothing checks that these bytes have the right format. Callers may be compiled with
        ``cache=True``: numba compiles them again if the kernel is another one, for example after a
        tuning. Called from Python, the function is the kernel.
        """
        self._native("numba")
        if self._numba is None:
            from tilewright.runtime.arrays.numba_calls import NumbaFunction

            self._numba = NumbaFunction(self, self._entry.key, self._in_order)
        return self._numba

    def _in_order(self, *given: Any) -> Any:
        """Call the kernel with all arguments in C's order, and packed matrices as their bytes."""
        from tilewright.runtime.call.packed_matrix import matrix_of

        arrays, scalars = self._signature.arrays, self._signature.scalars
        names = [*(p.name for p in arrays), *(p.name for p in scalars)]
        named = dict(zip(names, given, strict=True))
        packed = {p.name: matrix_of(p.format, named[p.name]) for p in arrays if p.packed}
        return self(**{**named, **packed})

    @property
    def source(self) -> str:
        """The C text of the library that holds the kernel."""
        path: Path = self._entry.directory / self._entry.manifest["text"]
        return path.read_text(encoding="utf-8")

    @property
    def schedule(self) -> Schedule:
        """The complete schedule: what was requested, and the cost model's choice for everything
        else.

        It has the register tile, the loops and the packing. If it is passed to ``compile``, these
        are the same. The tails may be cut differently: the cost model can choose other tiles for
        them, while a given tile is also used for its tails.
        """
        return Schedule(**self._entry.manifest["resolved"][self.name])

    def edit(self, path: str | PathLike[str]) -> Path:
        """Write the kernel's C to a new file, to be edited by hand.

        ``tw.compile(spec, schedule, target, source=path)`` then makes a kernel from the file.

        Parameters
        ----------
        path : path_like
            The file to be written. It must not exist.

        Returns
        -------
        pathlib.Path
            The path.

        Raises
        ------
        ArgumentError
            The file exists, or cannot be written.
        """
        if self.edited is not None:
            return write_new(path, self.edited.text)
        from tilewright.generate import Request

        request = Request(self.name, self.spec, self.requested, self.isa)
        return write_new(path, own_file([request]).text)

    def diff(self, *, measure: bool = False) -> str:
        """Return a unified diff from the generated C to the edited C; "" if they are equal.

        Parameters
        ----------
        measure : bool
            If True, time both kernels in turns, and append their times. Default: False.

        Raises
        ------
        SpecError
            The kernel's C was not edited.
        """
        if self.edited is None:
            raise SpecError(
                f"the C of {self.name} was not edited",
                hint="kernel.edit(path), then tw.compile(spec, schedule, target, source=path)",
            )
        generated = (self._entry.directory / GENERATED).read_text(encoding="utf-8")
        changed = difference(generated, self.edited)
        if not measure:
            return changed
        from tilewright.runtime.bench.timing import compare

        self._native("measuring")
        found = compare(self._remake(*self._said()), self)
        low, high = found.quartiles
        return (
            f"{changed}\n\ngenerated {found.first * 1e9:.1f} ns a call, edited"
            f" {found.second * 1e9:.1f} ns: {found.ratio:.3f} times as fast"
            f" ({low:.3f} to {high:.3f})"
        ).lstrip("\n")

    @property
    def library(self) -> Path:
        """The file in the cache that holds the kernel's machine code."""
        return self._entry.library

    @property
    def plan(self) -> AnyPlan:
        """All numbers of the kernel, each with its reason."""
        if self._plan is None:
            from tilewright.generate import plan_for
            from tilewright.runtime.tuned import with_tuning

            self._plan = with_tuning(plan_for(self.spec, self.requested, self.isa), self.tuned)
        return self._plan

    @property
    def c_declaration(self) -> str:
        """The C function's declaration. Strides and leading dimensions are counted in elements."""
        found = declaration(self.name, self.source)
        assert found is not None
        return found

    @property
    def flops(self) -> Any:
        """Floating-point operations of one call: an int, or a formula if sizes are given at the
        call.
        """
        if not isinstance(self.spec, Gemm):
            return 0
        sizes = {slot: getattr(self.spec, slot) for slot in ("m", "n", "k")}
        if self.spec.batch is not None:
            sizes["count"] = self.spec.batch.count
        dims = {slot: size for slot, size in sizes.items() if isinstance(size, Dim)}
        if dims:
            from tilewright.symbolic import size_expr

            sizes |= {slot: size_expr(slot, size) for slot, size in dims.items()}
        return self.spec.flops(sizes)

    @property
    def packs_b(self) -> bool:
        """True if B must be packed by ``pack_b``."""
        return isinstance(self.spec, Gemm) and isinstance(self.spec.b, Packed)

    def scratch_bytes(self, threads: int = 1, **sizes: int) -> int:
        """Return the bytes of scratch memory for ``threads`` simultaneous calls of ``address``.

        Parameters
        ----------
        threads : int
            Calls that run at the same time. Default: 1.
        **sizes : int
            Sizes of the call by name. Leading dimensions and strides have the least legal value by
            default.

        Returns
        -------
        int
            Bytes; 0 if the kernel takes no scratch memory.
        """
        from tilewright.runtime.bench.scratch import scratch_bytes, scratch_of

        each = partial(scratch_of, self._functions[1], lambda: self.plan)
        return scratch_bytes(self.spec, self.signature, each, threads, sizes)

    def explain(self, *, measure: bool = False, **sizes: int) -> str:
        """Return the plan in words: formulas, registers, reasons of decisions, and estimates of
        time.

        The estimates are for data in cache and for data in memory, and say which resource limits
        each.

        Parameters
        ----------
        measure : bool
            If True, also time the kernel on data in cache, as ``bench`` does. Default: False.
        **sizes : int
            Sizes of the call by name, such as ``m=1000``. Default: 64 each.

        Raises
        ------
        SpecError
            The kernel has no size of this name, or ``measure`` is True and the kernel is no
            product.
        TargetError
            ``measure`` is True and the kernel is emulated.
        """
        from tilewright.generate import explain_plan

        given = given_sizes(self.spec, sizes)
        edited = (
            ""
            if self.edited is None
            else f"edited     {self.edited.path}; this is the generated C's plan\n"
        )
        if not measure:
            return edited + explain_plan(self.plan, given)
        if not isinstance(self.spec, Gemm):
            hint = "kernel.explain() without measure, and kernel.bench()"
            raise SpecError("an estimate is of products", got=self.spec, hint=hint)
        from tilewright.explain.estimates import Measured
        from tilewright.runtime.bench.timing import bench

        self._native("measuring")
        timing = bench(self, sizes=given)
        assert timing.of_peak is not None, "a product has a peak"
        return edited + explain_plan(self.plan, given, Measured(timing.median, timing.of_peak))

    def _repr_html_(self) -> str:
        """Return the kernel for notebooks as HTML.

        It has the declaration, the estimate, the tuning's result if there is one, and the plan in
        words. The plan of a product is also drawn as a picture.
        """
        from tilewright.generate import plan_html

        notes = [self.c_declaration, *([] if self.tuned is None else [self.tuned.reason])]
        return plan_html(self.plan, repr(self), notes)

    def assembly(self) -> str:
        """Return the kernel's disassembled instructions."""
        from tilewright.runtime.build.assembly import assembly

        return assembly(self.name, self.isa, self._entry)

    def pack_b(self, b: Any, *, scales: Any = None, zeros: Any = None) -> PackedMatrix:
        """Return B packed for this kernel, and for all with the same target, types, k, n and nb.

        Parameters
        ----------
        b : array or QuantizedMatrix
            The matrix, k x n, or count x k x n for a batch in one array. Its type is B's, or
            float32, which is converted. For a quantized B it is a QuantizedMatrix, or its integers.
        scales, zeros : array, optional
            Scales and zero points, if ``b`` holds the integers of a quantized B.

        Raises
        ------
        ArgumentError
            ``b`` has another shape or type.
        SpecError
            The kernel takes no packed B.
        """
        from tilewright.runtime.call.pack_source import pack_for, pack_quantized

        if not isinstance(self.spec, Gemm) or not isinstance(self.spec.b, Packed):
            raise SpecError(f"{self.name} takes no packed B", hint='b=tw.Packed("bf16"): its type')
        if self.spec.quantized is not None:
            return pack_quantized(self.spec, self.isa, b, scales, zeros)
        spec, b = pack_for(self.spec, b, scales, zeros)
        if spec not in self._packers:
            self._packers[spec] = self._remake(spec, Schedule(), self.target)
        return self._packers[spec](b)  # type: ignore[no-any-return]

    def session(self) -> Session:
        """Return a context manager that keeps the kernel's matrix-unit configuration loaded.

        Inside the ``with`` block, calls of this kernel on this thread do not load it again. Other
        kernels save the configuration and restore it. Sessions may be nested. A session has no
        effect if the kernel needs no configuration, or if it is emulated, as emulated calls run in
        another process.
        """
        if self.emulated is not None or not self._configures():
            return Session(None, None)
        load, release = (self._function(name) for name in ("configure", "release"))
        return Session(load, release)

    def _configures(self) -> bool:
        return bool(self._target.unit) and f"void {self.name}_configure(" in self.source

    def _function(self, name: str) -> Callable[[], None]:
        """Return a C function of the kernel that takes no arguments, such as ``configure``."""
        from ctypes import CFUNCTYPE

        address = dispatch.symbol(self._entry.library, f"{self.name}_{name}")
        return CFUNCTYPE(None)(address)

    def verify(self, cases: int = 3, seed: int = 0) -> Verification:
        """Compare the kernel with numpy in higher precision, on random arrays.

        Parameters
        ----------
        cases : int
            Number of calls. Default: 3.
        seed : int
            Seed of the random arrays. Default: 0.

        Returns
        -------
        Verification
            The largest error, the bound on the error of that element, and the number of calls.

        Raises
        ------
        VerificationError
            A result is wrong.
        """
        from tilewright.runtime.reference.verify import verify

        return verify(self, cases, seed)

    def bench(self, cold: bool = False, seconds: float = 0.2, **sizes: int) -> Timing:
        """Time the kernel in a C loop.

        Parameters
        ----------
        cold : bool
            If True the data is in memory, else in cache. Default: False.
        seconds : float
            About how long to measure. Default: 0.2.
        **sizes : int
            Sizes of the call by name, such as ``m=1000``. Default: 64 each.

        Raises
        ------
        TargetError
            The kernel is emulated.
        """
        from tilewright.runtime.bench.timing import bench

        self._native("bench")
        return bench(self, cold, seconds, given_sizes(self.spec, sizes))

    def __reduce__(self) -> tuple[Any, ...]:
        said = (*self._said(), *([] if self.edited is None else [self.edited]))
        return parts(self._remake, said, self.spec, self.target)

    def _said(self) -> tuple[Spec, Schedule, str]:
        """Return the spec, schedule and target from which the kernel was made."""
        return self.spec, self.requested, self.target

    def __repr__(self) -> str:
        how = f", emulated through {self.emulated}" if self.emulated else ""
        made = f", edited in {self.edited.path}" if self.edited else ""
        return f"<{self.name} on {self.target}{how}{made}>"


def _given(array: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> bool:
    return any(array is value for value in (*positional, *named.values()))


def _undecided(*_: Any) -> int:
    return dispatch.UNDECIDED


def _nothing(_: tuple[Any, ...]) -> None:
    return None


def _two(scalars: tuple[float, ...]) -> tuple[float, float]:
    first, second = (*scalars, 0.0, 0.0)[:2]
    return first, second
