"""What the package offers beside kernels: its names, targets told, the peak, a warm start."""

from __future__ import annotations

from operator import attrgetter

import pytest
from support.processes import python

import tilewright as tw
from tilewright.runtime.machine import host
from tilewright.targets import NAMES


def test_a_kernel_tells_its_share_of_the_peak() -> None:
    """What it reaches is measured by ``python -m benchmarks``; see tests/bench/test_peak.py."""
    kernel = tw.compile(tw.Gemm(64, 48, 64))
    of_peak = kernel.bench(seconds=0.05).of_peak
    assert of_peak is not None
    assert of_peak > 0
    assert tw.compile(tw.Transpose(8, 8)).bench(seconds=0.01).of_peak is None


def test_targets_are_told() -> None:
    told = tw.targets()
    assert told.keys() == set(NAMES)
    assert told["scalar"] == told[host.resolve("host").name.partition("+")[0]] == "native"
    import tilewright.targets as package

    assert package.load("scalar").name == "scalar"


# -- a warm start -------------------------------------------------------------------------------

MODULE = """
import sys
import numpy
before = set(sys.modules)
started = []
sys.addaudithook(lambda event, args: started.append(event) if event in
                 ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork") else None)
import tilewright as tw
KERNELS = [tw.compile(tw.Gemm(8 + i, 4, 4)) for i in range(20)]
print(*started, *(set(sys.modules) - before))
"""
HEAVY = {
    "sympy", "jinja2", "cffi", "pycparser", "filelock", "archspec", "platformdirs", "subprocess",
    "tilewright.plan.plan", "tilewright.generate", "tilewright.runtime.build.toolchain",
    "tilewright.plan.formats.packed_b", "tilewright.isa.vector", "tilewright.spec.expression",
    "tilewright.runtime.call.argument_checks", *(f"tilewright.targets.{name}" for name in NAMES),
}  # fmt: skip


def test_a_warm_start_is_light() -> None:
    """What it may take is measured by ``python -m benchmarks startup``."""
    python(MODULE)
    seen = set(python(MODULE).split())
    assert not seen & (HEAVY | {"subprocess.Popen", "os.exec", "os.posix_spawn", "os.fork"})


LOW_BIT = """
import sys
import numpy as np
import tilewright as tw
FORM = tw.Quantized("u4", scale="f16", zero="u4", block=16)
whole = np.eye(32, 4, dtype=np.float32)
weight, x = tw.quantize(whole, FORM), np.ones((2, 32), np.float32)
layers = tw.network(lambda x, w: (x @ w.low) @ w.up)
net = tw.compile(layers.of(
    x=tw.Tensor("f32", (2, 32)), w={"low": tw.Tensor(FORM, (32, 4)), "up": tw.Tensor("f32", (4, 4))}
))
net(x, net.pack({"low": weight, "up": whole[:4]}))
rows = tw.Packed(tw.Quantize("f32", per=("row", 16)))
product = tw.compile(tw.Gemm(2, 4, 32, a=rows, b=tw.Packed(FORM)))
packed = product.pack_b(weight)
product(product.pack_a(x), packed), product.unpack_b(packed), packed.dequantize()
plain = tw.compile(tw.Gemm(2, 4, 32, b=tw.Packed("f32")))
tw.compile(tw.Copy(32, 4, a="f32", d=tw.Packed("f32", format=plain.formats["b"])))(whole)
print(*sys.modules)
"""


def test_a_warm_start_with_packed_and_low_bit_matrices_plans_nothing() -> None:
    cold, warm = (set(python(LOW_BIT).split()) for _ in range(2))
    heavy = {"sympy", "jinja2", "tilewright.plan.plan", "tilewright.plan.formats.quantized_b"}
    assert heavy <= cold and not heavy & warm


FIRST_PRODUCT = """
import sys
import numpy as np
import tilewright as tw
product = tw.matmul  # which loads what a call needs, if it was ever made
before = set(sys.modules)
product(np.ones((9, 9), np.float32), np.ones((9, 9), np.float32))
print(*(name.partition("_dispatch")[0] for name in set(sys.modules) - before))
"""


def test_the_first_product_of_a_process_loads_nothing() -> None:
    python(FIRST_PRODUCT)
    loaded = set(python(FIRST_PRODUCT).split())
    # Which asks the system for the registers of a matrix unit, where the host has one.
    assert not loaded - {"tilewright.runtime.call.session"}


def test_importing_the_package_loads_nothing() -> None:
    seen = python("import sys, tilewright; print(*sys.modules)").split()
    assert "numpy" not in seen
    assert not [name for name in seen if name.startswith("tilewright.")]


def test_public_names() -> None:
    for name in tw.__all__:
        assert getattr(tw, name) is not None
    assert set(tw.__all__) <= set(dir(tw))
    everything: dict[str, object] = {}
    exec("from tilewright import *", everything)
    assert {"Gemm", "postop", "relu", "where"} <= set(tw.__all__) <= everything.keys()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tw.nothing


@pytest.mark.parametrize(
    ("name", "meant"),
    [("sigmoid", "tw.logistic"), ("gelu", "tw.gelu_erf"), ("softmax", "tw.nn.softmax")],
)
def test_names_of_other_libraries_lead_to_what_there_is(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=meant):
        getattr(tw, name)
    assert attrgetter(meant.removeprefix("tw."))(tw)
