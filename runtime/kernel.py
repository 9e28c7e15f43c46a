"""The class ``Kernel``: a compiled kernel that is called on arrays, and can describe itself.

It is made from a spec, a schedule, a target and an entry of the cache that holds the compiled
library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.errors import SpecError
from tilewright.runtime.call.bound_sizes import given_sizes
from tilewright.runtime.call.session import Session
from tilewright.runtime.machine.target_table import Identity
from tilewright.runtime.store.cache import Entry
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.operands import Packed
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import Signature
from tilewright.spec.sizes import Dim

from .call import dispatch
from .callable_kernel import CallableKernel
from .edited import GENERATED, Edited, declaration, difference, own_file, write_new
from .pickled import parts

if TYPE_CHECKING:
    from tilewright.plan.loops import Decided
    from tilewright.runtime.bench.timing import Timing
    from tilewright.runtime.call.packed_matrix import PackedMatrix
    from tilewright.runtime.reference.verify import Verification
    from tilewright.runtime.tuned import Winner


class Kernel(CallableKernel):
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

    __slots__ = ("_packers", "_plan", "_remake", "edited", "requested", "tuned")
    requested: Schedule
    tuned: Winner | None
    edited: Edited | None

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
        super().__init__(name, spec, signature, target, entry)
        self.requested, self.tuned, self.edited = schedule, tuned, edited
        self._remake = remake
        self._plan: Decided | None = None
        self._packers: dict[Spec, Kernel] = {}

    @property
    def source(self) -> str:
        """The C text of the library that holds the kernel."""
        path: Path = self._entry.directory / self._entry.manifest["text"]
        return path.read_text(encoding="utf-8")

    @property
    def schedule(self) -> Schedule:
        """The complete schedule: the requested one, completed by the cost model.

        It has the register tile, the loops and the packing. ``compile`` with this schedule keeps
        these three, but may cut tails differently: the cost model can choose other tiles for tails,
        while a given tile is also used for its tails.
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
    def plan(self) -> Decided:
        """The plan: every choice for the kernel, for example its tiles, with the reasons."""
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
        """Floating-point operations of one call: an int, or a formula of the call's sizes."""
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
        """Return the bytes of scratch memory for ``threads`` calls of the C function at a time.

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
        """Return the plan in words: formulas, registers, reasons, and estimates of time.

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

        threads = self._threads()
        given = given_sizes(self.spec, sizes)
        edited = (
            ""
            if self.edited is None
            else f"edited     {self.edited.path}; this is the generated C's plan\n"
        )
        if not measure:
            return edited + explain_plan(self.plan, given) + threads
        if not isinstance(self.spec, Gemm):
            hint = "kernel.explain() without measure, and kernel.bench()"
            raise SpecError("an estimate is of products", got=self.spec, hint=hint)
        from tilewright.explain.estimates import Measured
        from tilewright.runtime.bench.timing import bench

        self._native("measuring")
        timing = bench(self, sizes=given)
        assert timing.of_peak is not None, "a product has a peak"
        measured = Measured(timing.median, timing.of_peak)
        return edited + explain_plan(self.plan, given, measured) + threads

    def _threads(self) -> str:
        """Return text on the threads that run the kernel's parallel loops; "" if it has none."""
        if self.emulated is not None or "run_parallel(" not in self.source:
            return ""
        from textwrap import fill

        from tilewright.runtime.threads.words import choice

        text = fill(f"  {choice()}", 100, subsequent_indent=" " * 12, break_on_hyphens=False)
        return f"\n\nThreads here\n{text}"

    def _repr_html_(self) -> str:
        """Return a description of the kernel in HTML, which notebooks show.

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

    def pack_b(
        self, b: Any, *, scales: Any = None, zeros: Any = None, container: Any = None
    ) -> PackedMatrix:
        """Return B packed for this kernel.

        Other kernels with the same target, types, k, n and nb can use the packed B too.

        Parameters
        ----------
        b : array or QuantizedMatrix
            The matrix, k x n, or count x k x n for a batch in one array. Its type is the spec's
            type of B, or float32, which is converted. A quantized B may be a QuantizedMatrix, an
            array of the stored integers, or the bytes of a tensor of a GGUF file.
        scales, zeros : array, optional
            Scales and zero points, if ``b`` has the stored integers of a quantized B.
        container : str, optional
            The tensor's type in the GGUF file, for example "q4_0", if ``b`` has its bytes. It is
            used as in ``tw.from_gguf``.

        Raises
        ------
        ArgumentError
            ``b`` has another shape, type or format.
        SpecError
            The kernel takes no packed B.
        """
        from tilewright.runtime.call.pack_source import Given, pack_for, pack_quantized

        if not isinstance(self.spec, Gemm):
            raise SpecError("this kernel has no B that could be packed", got=repr(self.spec))
        if not isinstance(self.spec.b, Packed):
            raise SpecError(
                "this kernel takes no packed B",
                got=f"a kernel whose B is {self.spec.factors[1]}, not packed",
                hint=f'tw.Gemm(..., b=tw.Packed("{self.spec.factors[1]}"))',
            )
        if self.spec.quantized is not None:
            return pack_quantized(self.spec, self.isa, Given(b, scales, zeros, container))
        spec, b = pack_for(self.spec, Given(b, scales, zeros, container))
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
