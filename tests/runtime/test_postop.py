"""Functions of epilogues that users define: refused, compiled, cached, verified, pickled."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.processes import python

import tilewright as tw
from tilewright.errors import PlanError, SpecError, VerificationError
from tilewright.runtime.driver import described
from tilewright.spec.expression import REGISTRY
from tilewright.spec.sizes import canonical

#: For what type checkers refuse.
MISUSED: Any = 3


@pytest.fixture(autouse=True)
def own_forgotten() -> Iterator[None]:
    """What other tests defined in this process (the tutorial's softcap) is out of the way here."""
    before = dict(REGISTRY)
    for name in [name for name, entry in before.items() if entry.own]:
        del REGISTRY[name]
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def softcap(limit_of: float = 1.0) -> Any:
    """The same definition, but for a factor of its own."""

    @tw.postop(reference=lambda x, limit: limit * np.tanh(x / limit), ulps=4, absolute=1e-6)
    def softcap(x: tw.Expression, limit: float = 30.0) -> tw.Expression:
        """``limit * tanh(x / limit)``."""
        return limit * tw.tanh(x * limit_of / limit)

    return softcap


# -- uses -----------------------------------------------------------------------------------------


def test_a_kernel_computes_it_and_is_held_to_its_reference() -> None:
    capped = softcap()
    kernel = tw.compile(tw.Gemm(6, 20, 8, epilogue=capped(tw.acc, 2)))
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(-1, 1, shape).astype("f4") for shape in ((6, 8), (8, 20)))
    np.testing.assert_allclose(kernel(a, b), 2 * np.tanh(a @ b / 2), atol=1e-5)
    assert kernel.verify().cases == 3
    assert "softcap(acc, limit=2)" in repr(kernel.spec)
    assert "softcap(acc, limit=2)" in kernel.explain()


def test_a_wrong_reference_is_found_by_verify() -> None:
    @tw.postop(reference=lambda x: x * x * 1.001, ulps=4)
    def nearly(x: tw.Expression) -> tw.Expression:
        return x * x

    with pytest.raises(VerificationError, match="is wrong at"):
        tw.compile(tw.Gemm(6, 20, 8, epilogue=nearly(tw.acc))).verify()


def test_a_program_of_elementary_operations() -> None:
    @tw.postop(lower=lambda b, x: b("fma", x, x, 1.0), reference=lambda x: x * x + 1, ulps=1)
    def fused(x: tw.Expression) -> None:
        """``x * x + 1``, rounded once."""

    spec = tw.Gemm(4, 16, 1, epilogue=fused(tw.acc))
    a, b = np.full((4, 1), 1 + 2.0**-12, "f4"), np.ones((1, 16), "f4")
    assert (tw.compile(spec)(a, b) == np.float32((1 + 2.0**-12) ** 2 + 1)).all()
    tw.compile(spec).verify()
    with pytest.raises(SpecError, match="fused is not computed in f64"):
        tw.Gemm(4, 16, 1, a="f64", b="f64", epilogue=fused(tw.acc))


def test_it_is_used_in_f64_in_outputs_and_beside_algebra() -> None:
    @tw.postop
    def bend(x: Any, y: Any, alpha: float = 0.5) -> tw.Expression:
        return tw.where(x > y, x, y + alpha * (x - y))

    twice = bend(tw.acc, 1.0) + bend(tw.acc, 1.0)
    specs = [
        tw.Gemm(5, 9, 4, a="f64", b="f64", epilogue=bend(tw.acc, 0.25, 2)),
        tw.Gemm(5, 9, 4, epilogue=tw.acc, outputs={"most": tw.row_max(bend(tw.acc, 0))}),
        tw.Gemm(5, 9, 4, epilogue=twice, algebra=True),
        tw.Gemm(5, 9, 4, a="u8", b="s8", d="s8", epilogue=bend(tw.acc, 3)),
    ]
    for kernel in tw.compile_many(specs):
        kernel.verify()
    capped = softcap()
    with pytest.raises(SpecError, match="tanh is not computed in f64"):
        tw.Gemm(5, 9, 4, a="f64", b="f64", epilogue=capped(tw.acc))


# -- what tells kernels apart ---------------------------------------------------------------------


def test_a_changed_program_is_another_kernel_and_an_old_expression_keeps_its_own() -> None:
    first = tw.Gemm(4, 16, 4, epilogue=softcap()(tw.acc))
    again = tw.Gemm(4, 16, 4, epilogue=softcap()(tw.acc))
    other = tw.Gemm(4, 16, 4, epilogue=softcap(2.0)(tw.acc))
    assert repr(first) == repr(again) == repr(other)
    assert canonical(first) == canonical(other), "which names the function, as the text does"
    assert described(first) == described(again) != described(other)
    kernels = [tw.compile(spec) for spec in (first, again, other)]
    assert kernels[0].name == kernels[1].name != kernels[2].name
    a, b = np.ones((4, 4), "f4"), np.ones((4, 16), "f4")
    found = [kernel(a, b)[0, 0] for kernel in kernels]
    wanted = [30 * np.tanh(factor * 4 / 30) for factor in (1, 1, 2)]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert len(described(tw.Gemm(4, 16, 4, epilogue=tw.relu(tw.acc)))) == 1


def test_a_reference_is_no_part_of_a_kernel() -> None:
    def made(ulps: float) -> tw.Gemm:
        @tw.postop(reference=lambda x: -x, ulps=ulps)
        def turned(x: tw.Expression) -> tw.Expression:
            return 0 - x

        return tw.Gemm(4, 16, 4, epilogue=turned(tw.acc))

    assert described(made(1)) == described(made(2))


WARM = """
import sys, tilewright as tw
@tw.postop
def warm_bend(x, alpha=0.5):
    return tw.maximum(x, alpha * x)
kernel = tw.compile(tw.Gemm(3, 16, 4, epilogue=warm_bend(tw.acc) + tw.relu(tw.acc)))
print(kernel.name, *sys.modules)
"""


def test_a_warm_start_is_light_with_post_ops_too() -> None:
    cold, warm = python(WARM).split(), python(WARM).split()
    assert cold[0] == warm[0]
    heavy = {"sympy", "jinja2", "tilewright.generate", "tilewright.elementwise.simplify"}
    assert heavy <= set(cold)
    assert not {*heavy, "cffi"} & set(warm)


# -- pickles --------------------------------------------------------------------------------------

MODULE = """
import tilewright as tw

@tw.postop
def shared_bend(x, alpha=0.5):
    return tw.maximum(x, FACTOR * alpha * x)
"""
LOADS = "import pickle, sys; kernel = pickle.load(open(sys.argv[1], 'rb')); print(kernel.name)"


def _module(folder: Path, factor: float) -> None:
    folder.mkdir()
    text = MODULE.replace("FACTOR", str(factor))
    (folder / "shared_postops.py").write_text(text)


def _load(folder: Path, path: Path) -> subprocess.CompletedProcess[str]:
    found = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", LOADS, str(path)]
    environment = {**os.environ, "PYTHONPATH": found}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_kernels_pickle_where_the_definition_can_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, factor in (("here", 1), ("changed", 2)):
        _module(tmp_path / name, factor)
    monkeypatch.syspath_prepend(str(tmp_path / "here"))
    import shared_postops  # type: ignore[import-not-found]

    monkeypatch.delitem(sys.modules, "shared_postops")
    kernel = tw.compile(tw.Gemm(4, 16, 4, epilogue=shared_postops.shared_bend(tw.acc)))
    path = tmp_path / "kernel.pickle"
    path.write_bytes(pickle.dumps(kernel))
    assert pickle.loads(path.read_bytes()).name == kernel.name
    assert _load(tmp_path / "here", path).stdout.strip() == kernel.name
    changed = _load(tmp_path / "changed", path)
    assert "SpecError: a post-op of this kernel is defined otherwise" in changed.stderr
    lacking = _load(tmp_path, path)
    assert "SpecError: this process has no post-op 'shared_bend'" in lacking.stderr
    assert "import the module that defines it" in lacking.stderr


def test_expressions_pickle_and_copy() -> None:
    one = softcap()(tw.acc, 2) + 1
    assert copy.deepcopy(one) == one
    assert pickle.loads(pickle.dumps(one)) == one
    del REGISTRY["softcap"]
    with pytest.raises(SpecError, match="no post-op 'softcap'"):
        pickle.loads(pickle.dumps(one))


# -- what is refused ------------------------------------------------------------------------------


def _named(name: str) -> Any:
    namespace: dict[str, Any] = {"__name__": "elsewhere"}
    exec(f"def {name}(x): return x + 1", namespace)
    return namespace[name]


@pytest.mark.parametrize("name", ["relu", "add", "acc", "Operand", "double", "volatile"])
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(SpecError, match=r"is taken by|is a word of C"):
        tw.postop(_named(name))


def test_a_name_of_another_module_is_taken() -> None:
    softcap()
    with pytest.raises(SpecError, match=r"the name 'softcap' is taken.*\n.*test_postop"):
        tw.postop(_named("softcap"))


def _none(x: Any) -> None:
    pass


def _itself(x: Any) -> Any:
    return tw.postop(_itself)(x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tw.postop(MISUSED), "defined by a Python function"),
        (lambda: tw.postop(_none), "says not what it computes"),
        (lambda: tw.postop(lower=lambda b, x: x)(_none), "says not what it computes"),
        (lambda: tw.postop(_itself), "defined by itself"),
        (lambda: tw.postop(ulps=2)(_named("own")), "give one"),
        (lambda: tw.postop(reference=np.exp)(_named("own")), "has no bound"),
        (lambda: tw.postop(reference=MISUSED, ulps=2)(_named("own")), "is no function"),
        (lambda: tw.postop(reference=np.exp, ulps=-1)(_named("own")), "ulps of own"),
        (lambda: tw.postop(reference=np.exp, ulps=np.inf)(_named("own")), "ulps of own"),
        (lambda: tw.postop(lower=MISUSED)(_named("own")), "lower writes a program"),
        (lambda: tw.postop(samples=MISUSED)(_named("own")), "samples are"),
        (lambda: tw.postop(samples=((1,),))(_named("own")), "too many"),
        (lambda: tw.postop(lambda *x: x[0]), "another kind|C identifier"),
        (lambda: tw.postop(lambda: 1.0), "no operand|C identifier"),
        (lambda: tw.postop(lambda x: x), "C identifier"),
    ],
)
def test_a_definition_without_meaning_is_refused(make: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


def test_wrong_parameters_are_refused_at_the_use() -> None:
    capped = softcap()
    for wrong in ("2", float("nan"), float("inf"), True, tw.acc):
        with pytest.raises(SpecError, match="limit of softcap"):
            capped(tw.acc, wrong)
    with pytest.raises(TypeError, match="argument"):
        capped(tw.acc, 1, 2)
    with pytest.raises(SpecError, match=r"tw\.Operand"):
        capped(np.ones(3))


def test_a_program_that_gives_no_number_is_refused() -> None:
    def _compiled(lower: Any) -> None:
        @tw.postop(lower=lower, reference=lambda x: x, ulps=1)
        def broken(x: tw.Expression) -> None:
            """Broken."""

        tw.compile(tw.Gemm(4, 16, 4, epilogue=broken(tw.acc)))

    with pytest.raises(SpecError, match="gives no number of f32"):
        _compiled(lambda b, x: None)
    with pytest.raises(SpecError, match="lanes of s32"):
        _compiled(lambda b, x: b("bits", x))
    with pytest.raises(PlanError, match="no elementary operation"):
        _compiled(lambda b, x: b("sine", x))


def test_a_reference_of_another_shape_is_refused() -> None:
    @tw.postop(reference=lambda x: float(x.sum()), ulps=1)
    def summed(x: tw.Expression) -> tw.Expression:
        return x

    with pytest.raises(SpecError, match="reference of summed"):
        tw.compile(tw.Gemm(4, 16, 4, epilogue=summed(tw.acc))).verify()
