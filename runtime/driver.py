"""Turn specs into kernels.

Resolve the target and look in the cache. If the kernel is not there, generate C, compile it and
publish it in the cache. In go specs with schedules and targets; out come kernels.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.errors import ArgumentTypeError, ScheduleError, SpecError, ToolchainError
from tilewright.keywords import spelled
from tilewright.runtime.call.arguments import check_readable
from tilewright.runtime.machine.target_table import Identity
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.names import check_function_name
from tilewright.spec.schedule import Schedule
from tilewright.spec.signature import Signature, signature
from tilewright.spec.sizes import canonical

from .edited import GENERATED, Edited, check_edited, of_file, own_file, read_edited
from .kernel import Kernel
from .machine import host
from .packers import packer_of
from .pickled import own_programs_of
from .several import SeveralResults
from .store import cache
from .store.collector import uncollected
from .store.compiled import keep_templates
from .store.damaged import used
from .store.folders import tunings_file

if TYPE_CHECKING:
    from tilewright.emit.render import Source
    from tilewright.generate import Request
    from tilewright.plan.loops import Decided
    from tilewright.runtime.build.compilers import Compiler
    from tilewright.runtime.tuned import Subject, Winner

#: Maximum number of characters of a wrong spec that an error message shows.
_SHOWN = 80
#: Minimum number of kernels in each C file of a library. The files are compiled in parallel.
_PER_FILE = 4
#: Attributes of the compiler that a library's manifest records, besides the compiler's command.
_PARTS = ("family", "version", "triple", "means")


class _Job(NamedTuple):
    """One requested kernel, which is taken from the cache or built.

    All its arguments are resolved and checked.
    """

    spec: Spec
    schedule: Schedule
    signature: Signature
    target: Identity
    means: host.Means
    flags: tuple[str, ...]
    key: str
    name: str
    tuned: Winner | None
    edited: Edited | None
    stamped: bool


@spelled(ArgumentTypeError)
def compile(
    spec: Spec,
    schedule: Schedule | None = None,
    target: str = "host",
    *,
    source: str | PathLike[str] | None = None,
) -> Kernel:
    """Return the kernel that computes ``spec``, compiled or taken from the cache.

    Parameters
    ----------
    spec : Gemm, Transpose, Copy, Pack or PackQuantized
        The computation.
    schedule : Schedule, optional
        How it is computed. By default, for target "host", the winner that ``tw.tune`` stored for
        this CPU. If there is none, or for another target, the cost model chooses, as for
        ``Schedule()``.
    target : str
        "host", which is the best target of this CPU, or a target's name. Default: "host".
    source : path_like, optional
        File that ``kernel.edit`` wrote and a person changed. It is compiled in place of generated
        C, with the same compiler, flags and checks. The cache distinguishes kernels by its text.

    Returns
    -------
    Kernel
        The kernel, ready to be called.

    Raises
    ------
    SpecError, ScheduleError, PlanError
        The spec or the schedule is invalid, in general or for this target. Or the function in
        ``source`` has other parameters than the spec's kernel.
    TargetError
        The target is unknown, or cannot run here.
    ToolchainError
        There is no compiler, or it failed.
    CacheError
        The cache directory cannot be used.
    ArgumentError
        ``source`` cannot be read.

    Examples
    --------
    >>> kernel = tw.compile(tw.Gemm(2, 3, 4), tw.Schedule(tile=(2, 3)), target="host")
    >>> kernel(np.ones((2, 4), np.float32), np.ones((4, 3), np.float32))
    array([[4., 4., 4.], [4., 4., 4.]], dtype=float32)
    """
    edited = None if source is None else read_edited(source)
    return build_many([(spec, schedule, target)], edited=edited)[0]


@spelled(ArgumentTypeError)
def compile_many(
    requests: Iterable[tuple[Spec, Schedule | None, str] | tuple[Spec, Schedule | None] | Spec],
) -> list[Kernel]:
    """Return the kernels of several requests. Those that the cache lacks become one library.

    Parameters
    ----------
    requests : iterable
        Each is a spec, ``(spec, schedule)`` or ``(spec, schedule, target)``, as in ``compile``.

    Returns
    -------
    list of Kernel
        The kernels, in the order of the requests.

    Raises
    ------
    TilewrightError
        The same errors as ``compile``.

    Examples
    --------
    >>> first, second = tw.compile_many([tw.Gemm(2, 2, 2), (tw.Gemm(3, 3, 3), None, "scalar")])
    >>> first.library == second.library, second.target
    (False, 'scalar')
    """
    return build_many(requests)


def build_many(
    requests: Iterable[Any],
    flags: Sequence[str] = (),
    edited: Edited | None = None,
    *,
    stamped: bool = False,
) -> list[Kernel]:
    """Return the kernels of ``requests`` as ``compile_many`` does, with further arguments.

    ``flags`` are appended to the C compiler's usual options. ``edited`` is C that replaces the
    generated C; it needs a single request. If ``stamped``, the kernels note the times of their
    stages.
    """
    jobs = [_job(*_completed(request), tuple(flags), edited, stamped) for request in requests]
    entries: dict[str, cache.Entry] = {}
    missing: dict[tuple[str, str], dict[str, _Job]] = {}
    for job in jobs:
        if job.key in entries:
            continue
        entry = cache.lookup(job.key, _check(job))
        if entry is not None:
            entries[job.key] = entry
        else:
            missing.setdefault((job.target.name, job.means), {})[job.key] = job
    for group in missing.values():
        entries.update(_build(list(group.values())))
    return [_loaded(job, entries[job.key]) for job in jobs]


def _loaded(job: _Job, entry: cache.Entry) -> Kernel:
    """Return the kernel of ``entry``. If its library is damaged, it is built again."""
    return used(entry, partial(_kernel, job), lambda: _build([job])[job.key])


def _check(*jobs: _Job) -> cache.Check:
    """Return a function that checks the manifest of a library with the kernels of ``jobs``.

    That function returns the problem as text, or None.
    """
    means, names = jobs[0].means, {job.name for job in jobs}

    def problem(manifest: Mapping[str, Any]) -> str | None:
        if (found := manifest.get("means")) != means:
            return f"its manifest says that it runs by {found!r:.40}, not {means!r}"
        if set(_PARTS) != set(_mapping(manifest.get("compiler_parts"))):
            return "its manifest does not say which compiler made it"
        texts = _mapping(manifest.get("texts"))
        where = [manifest.get("text"), *(texts.get(name) for name in names)]
        if not all(isinstance(name, str) and name in manifest["files"] for name in where):
            return "its manifest does not say where the C of its kernels is"
        if not names <= set(_mapping(manifest.get("resolved"))):
            return "its manifest does not say what the schedules of its kernels came to"
        formats = _mapping(manifest.get("formats"))
        if not all(isinstance(formats.get(name), dict) for name in names):
            return "its manifest does not say in which formats its kernels read packed matrices"
        return None

    return problem


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _kernel(job: _Job, entry: cache.Entry) -> Kernel:
    several = getattr(job.spec, "several", False)
    made = SeveralResults if several else packer_of(job.spec)
    if getattr(job.spec, "weights", ()):
        from .network_kernel import NetworkKernel

        made = NetworkKernel
    parts = job.name, job.spec, job.schedule, job.signature, job.target, entry, _again
    return made(*parts, tuned=job.tuned, edited=job.edited)


def _again(
    spec: Spec,
    schedule: Schedule,
    target: str,
    edited: Edited | None = None,
    *,
    stamped: bool = False,
) -> Kernel:
    """Compile a kernel that is unpickled, or that another kernel needs, for example to pack B."""
    return build_many([(spec, schedule, target)], edited=edited, stamped=stamped)[0]


def _completed(request: Any) -> tuple[Any, Any, Any]:
    parts = tuple(request) if isinstance(request, (tuple, list)) else (request,)
    if not 1 <= len(parts) <= 3:
        raise SpecError("a request is (spec, schedule, target)", got=request)
    spec, schedule, target = (*parts, None, "host")[:3] if len(parts) < 3 else parts
    return spec, schedule, "host" if target is None else target


def checked(spec: Any, schedule: Any) -> tuple[Spec, Schedule]:
    """Return the spec and the schedule, which is ``Schedule()`` by default.

    Raises SpecError or ScheduleError if one is of another type.
    """
    if not isinstance(spec, Spec):
        from tilewright.spec.network.trace import NetworkFunction

        got = spec if len(shown := repr(spec)) <= _SHOWN else f"{shown[:_SHOWN]}..."
        hint = f"{spec.name}.of(x=tw.Tensor(...))" if isinstance(spec, NetworkFunction) else None
        raise SpecError("a spec is a tw.Gemm, Transpose, Copy, Network or Pack", got=got, hint=hint)
    if schedule is not None and not isinstance(schedule, Schedule):
        hint = f"target={schedule!r:.{_SHOWN}}" if isinstance(schedule, str) else None
        raise ScheduleError("a schedule is a tw.Schedule, or None", got=schedule, hint=hint)
    return spec, Schedule() if schedule is None else schedule


def _job(
    spec: Any,
    schedule: Any,
    target: Any,
    flags: tuple[str, ...],
    edited: Edited | None,
    stamped: bool,
) -> _Job:
    given = schedule
    spec, schedule = checked(spec, schedule)
    parameters = signature(spec)
    check_readable(parameters)
    resolved = host.identify(target)
    means = host.means(resolved)
    tuned, texts = None, described(spec)
    if given is None and target == "host" and means == "native":
        tuned = stored_winner(spec, resolved.name, texts)
        schedule = schedule if tuned is None else tuned.schedule
    parts = ["kernel", *texts, canonical(schedule), resolved.name, means]
    parts += ["edited", edited.text] if edited else []
    parts += ["stamped"] if stamped else []
    named = host.user_compiler(resolved, means)
    key = cache.key(*parts, *([] if named is None else [named]), *flags)
    name = edited.name if edited else kernel_name(spec, resolved.name, key)
    own = key, name, tuned, edited, stamped
    return _Job(spec, schedule, parameters, resolved, means, flags, *own)


def stored_winner(spec: Spec, target: str, texts: Sequence[str] | None = None) -> Winner | None:
    """Return the winner that ``tune`` stored for a spec, a resolved target and this CPU; else None.

    ``texts`` are those of ``described(spec)``, if the caller has them. If nothing was ever tuned,
    this costs one look at the file system.
    """
    tunable = isinstance(spec, Gemm) or bool(spec.expressions)
    if not tunable or not os.path.exists(tunings_file()):
        return None
    from tilewright.runtime.tuned import Database, subject

    return Database().winner(subject(texts or described(spec), target))


def planned(spec: Spec, schedule: Schedule | None, target: str) -> Decided:
    """Return the plan of the kernel that ``compile`` would make from the same arguments."""
    from tilewright.generate import plan_for

    given, (spec, schedule) = schedule, checked(spec, schedule)
    resolved = host.resolve(target)
    tuned = stored_winner(spec, resolved.name) if given is None and target == "host" else None
    from tilewright.runtime.tuned import with_tuning

    return with_tuning(plan_for(spec, tuned.schedule if tuned else schedule, resolved), tuned)


def tuning_subject(spec: Spec, target: str) -> Subject:
    """Return the key under which a spec's tunings are stored, for a target and this CPU."""
    from tilewright.runtime.tuned import subject

    return subject(described(spec), target)


def described(spec: Spec) -> list[str]:
    """Return the texts that identify a spec: its own, and those of the user's own post-ops.

    The text of a post-op is the sequence of its elementary operations. Two specs with equal texts
    have equal kernels. The Python source of a post-op, its reference and its error bound do not
    change a kernel. A kind of routine that another package defines has its module's source as well.
    """
    return [canonical(spec), *own_programs_of(spec), *_foreign_source(spec.routine)]


def _foreign_source(module: str) -> Iterator[str]:
    """Yield the source of a module outside tilewright, whose own sources are in each key anyway."""
    if not module.startswith("tilewright."):
        file = getattr(import_module(module), "__file__", None)
        if file is not None:
            yield Path(file).read_text(encoding="utf-8")


def request_for(spec: Any, schedule: Any, target: str, name: str | None = None) -> Request:
    """Return the request to the generator for one kernel: its name, spec, schedule and target.

    Without a ``name``, the function is named after the computation.
    """
    from tilewright.generate import Request

    if name is not None:
        check_function_name(name)
    spec, schedule = checked(spec, schedule)
    found = host.resolve(target)
    if name is None:
        digest = cache.key("emit", *described(spec), canonical(schedule), found.name)
        name = kernel_name(spec, found.name, digest)
    return Request(name, spec, schedule, found)


# --- names -------------------------------------------------------------------------------------


def kernel_name(spec: Spec, target: str, key: str) -> str:
    """Return a C identifier that describes the kernel.

    For example ``gemm_f32_64x48xK_ccf_s16_beta1_avx512_1f00ba12``: the type; m x n x k, where an
    upper-case letter is a size of the call; the orders of A, B and C; the kind of batch (s strided,
    o offsets, p addresses) with its count; beta if it is not 0; the target; the first eight digits
    of the key.
    """
    return "_".join([*spec.words(), target.replace("+", "_").replace(".", "_"), key[:8]])


# --- building ----------------------------------------------------------------------------------


def _build(jobs: Sequence[_Job]) -> dict[str, cache.Entry]:
    """Build one library of ``jobs``, which are all for one target. Return the entry of each key."""
    if len(jobs) == 1:
        (job,) = jobs
        return {job.key: cache.publish(job.key, lambda folder: _make(jobs, folder), _check(job))}
    group = cache.key("library", *sorted(job.key for job in jobs))
    entry = cache.publish(group, lambda folder: _make(jobs, folder), _check(*jobs))
    texts = entry.manifest["texts"]
    return {job.key: cache.refer(job.key, entry, {"text": texts[job.name]}) for job in jobs}


def _make(jobs: Sequence[_Job], folder: Path) -> Mapping[str, Any]:
    """Generate and compile the kernels into ``folder``, and return the content of the manifest."""
    with uncollected():
        from tilewright.generate import Request, generate
        from tilewright.plan.formats.lookup import formats_of
        from tilewright.runtime.build.compilers import find_compiler
        from tilewright.runtime.build.toolchain import compiler_flags

        keep_templates()
        target, emulated = jobs[0].target.description, jobs[0].means != "native"
        compiler = find_compiler(target, emulated=emulated)
        parts = _split(jobs)
        # An edited file began as the output of ``own_file``, so its C is compared with that.
        written = own_file if jobs[0].edited else generate
        made = [
            written([Request(j.name, j.spec, j.schedule, target, j.stamped) for j in part])
            for part in parts
        ]
    built = _compiled(jobs, _texts(jobs, made, folder), compiler, folder)
    # The names that the toolchain gives to the C files of a library.
    several = len(made) > 1 or emulated
    files = [f"kernels_{i}.c" if several else "kernels.c" for i in range(len(made))]
    resolved = {
        name: asdict(schedule)
        for source in made
        for name, schedule in zip(source.names, source.schedules, strict=True)
    }
    return {
        "library": built.name,
        "source": files[0],
        "text": files[0],
        "texts": {job.name: at for at, part in zip(files, parts, strict=True) for job in part},
        "resolved": resolved,
        "formats": {
            job.name: {name: form.text for name, form in formats_of(job.spec, target).items()}
            for job in jobs
        },
        "target": target.name,
        "means": jobs[0].means,
        "compiler": str(compiler),
        "compiler_parts": _parts(compiler),
        "flags": [*compiler_flags(target, compiler), *jobs[0].flags],
        "spec": [canonical(job.spec) for job in jobs],
        "schedule": [canonical(job.schedule) for job in jobs],
    }


def _texts(jobs: Sequence[_Job], made: Sequence[Source], folder: Path) -> list[str]:
    """Return the C texts to be compiled. Edited C is checked, and replaces the generated C."""
    texts = [source.text for source in made]
    edited = jobs[0].edited
    if edited is None:
        return texts
    check_edited(edited, texts[0])
    (folder / GENERATED).write_text(texts[0], encoding="utf-8")
    return [edited.text]


def _compiled(jobs: Sequence[_Job], texts: list[str], compiler: Compiler, folder: Path) -> Path:
    """Compile the C texts, and return the library's path.

    If this CPU cannot load the library, the result is a program that runs the kernels emulated.
    """
    from tilewright.runtime.build.toolchain import compile_library

    job = jobs[0]
    target, flags = job.target.description, job.flags
    try:
        if job.means == "native":
            return compile_library(texts, target, compiler, folder, "kernels", flags)
        from .emulate.runner import build

        names = [job.name for job in jobs]
        return build(texts, names, target, compiler, folder, "kernels", flags)
    except ToolchainError as error:
        raise (error if job.edited is None else of_file(error, job.edited)) from None


def _split(jobs: Sequence[_Job]) -> list[Sequence[_Job]]:
    """Distribute the jobs over C files, and return the jobs of each file.

    There are enough files for all cores, but none with very few kernels.
    """
    cores = os.cpu_count() or 1
    files = max(1, min(cores, len(jobs) // _PER_FILE))
    return [jobs[i::files] for i in range(files)]


def _parts(compiler: Compiler) -> dict[str, Any]:
    return {name: getattr(compiler, name) for name in _PARTS}
