"""Libraries with networks of bf16, 8-bit and low-bit weights, and their weights in one block."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright import nn
from tilewright.runtime.machine.host import machine, resolve

pytestmark = pytest.mark.xdist_group("library of networks")
ROWS = tw.dim("rows")
BF16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(8)
#: ``up`` is (n, k): its transpose is packed.
GIVEN = {
    "up": RNG.standard_normal((24, 12)).astype(BF16),
    "b": RNG.standard_normal(24).astype("f4"),
    "c": RNG.standard_normal(24).astype("f4"),
    "down": RNG.standard_normal((24, 5)).astype(BF16),
}


def layers(x: Any, w: Any) -> Any:
    return tw.relu(nn.linear(x, w.up.T, w.b - w.c)).astype("bf16") @ w.down


def integers(x: Any, w: Any) -> Any:
    return nn.product(x, w.q, a_zero=3).astype("f32") * w.s


SPEC = tw.network(layers).of(x=tw.Tensor("bf16", (ROWS, 12)), w=GIVEN)
KERNELS: dict[str, Any] = {
    "layers": SPEC,
    "integers": tw.network(integers).of(
        x=tw.Tensor("u8", (3, 12)), w={"q": tw.Tensor("s8", (12, 9)), "s": tw.Tensor("f32", 9)}
    ),
    "low": tw.network(lambda x, w: x @ w.q + w.b).of(
        x=tw.Tensor("f32", (ROWS, 40)),
        w={"q": tw.Tensor(tw.Quantized("u4", scale="f16", zero="u4", block=32), (40, 7)),
           "b": tw.Tensor("f32", 7)},
    ),
    "added": tw.network(nn.scatter_add).of(
        base=tw.Tensor("f32", (5, 12)), index=tw.Tensor("s32", (tw.dim("r"),)),
        rows=tw.Tensor("f32", (tw.dim("r"), 12)),
    ),
}  # fmt: skip


def test_a_library_passes_and_packs_the_block_that_python_saves(tmp_path: Path) -> None:
    library = tw.library("nets", KERNELS, targets=[resolve("host").name], jobs=1)
    assert "24 f32 of w.b - w.c" in library.files["include/nets.h"]
    (built,) = library.build(tmp_path / "nets", architectures=[machine()])
    assert built.passed, built.output
    assert "8 kernels, 22 calls" in built.output

    net: Any = tw.compile(SPEC)
    packed = net.pack(GIVEN)
    packed.save(tmp_path / "weights")
    data = (tmp_path / "weights").read_bytes()
    block = data[struct.calcsize("<16sII") + struct.unpack_from("<I", data, 20)[0] :]

    assert built.shared is not None
    loaded = ctypes.CDLL(str(built.shared))
    loaded.nets_layers_packed_bytes.restype = ctypes.c_int64
    assert loaded.nets_layers_packed_bytes() == len(block)
    made = np.zeros(len(block) + 64, np.uint8)
    made = made[-made.ctypes.data % 64 :][: len(block)]
    given = {
        "w_up_T": np.ascontiguousarray(GIVEN["up"].T),
        "w_b_folded": GIVEN["b"] - GIVEN["c"],
        "w_down": GIVEN["down"],
    }
    loaded.nets_layers_pack(
        *(ctypes.c_void_p(given[each.name].ctypes.data) for each in SPEC.folded.weights),
        ctypes.c_void_p(made.ctypes.data),
    )
    assert made.tobytes() == block

    x, out = RNG.standard_normal((9, 12)).astype(BF16), np.zeros((9, 5), BF16)
    scratch = np.zeros(1 << 16, np.uint8)
    loaded.nets_layers_with(
        *(ctypes.c_void_p(each.ctypes.data) for each in (x, made, out)),
        ctypes.c_int64(len(x)), ctypes.c_void_p(-(-scratch.ctypes.data // 64) * 64),
    )  # fmt: skip
    np.testing.assert_array_equal(out.view(np.uint16), net(x, packed).view(np.uint16))
