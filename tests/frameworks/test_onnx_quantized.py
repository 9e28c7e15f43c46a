"""Quantized ONNX files: their products are of integers, and near float64 of the quantized graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.spec.expression.nodes import every_node
from tilewright.spec.expression.products import Product
from tilewright.spec.expression.tensors import Take

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
from onnx import helper, numpy_helper, parser  # noqa: E402

import tilewright.onnx  # noqa: E402

K, N, ROWS = 37, 20, 9
#: Scale and zero point of x, and those of the result, by type.
OF_X = {"uint8": (0.03, 119), "int8": (0.03, -7)}
OF_Y = {"uint8": (0.25, 130), "int8": (0.25, 5)}


def quantized(x: Any, scale: Any, zero: Any, type_: str) -> Any:
    """Numbers as integers, in float64."""
    limits = np.iinfo(type_)
    return np.clip(np.rint(x / scale) + zero, limits.min, limits.max)


class Layer:
    """A layer of random integers, and what it computes in float64 with the graph's roundings."""

    def __init__(self, x_type: str, w_type: str, *, columns: bool) -> None:
        rng = np.random.default_rng(7)
        low, high = (-127, 128) if w_type == "int8" else (0, 256)
        self.type, self.w_zero = x_type, 0 if w_type == "int8" else 131
        self.whole = rng.integers(low, high, (K, N)).astype(w_type)
        self.w_scale = rng.uniform(0.01, 0.03, N if columns else 1).astype(np.float32)
        self.bias = rng.integers(-9000, 9000, N).astype(np.int32)
        self.x = rng.standard_normal((ROWS, K)).astype(np.float32)

    @property
    def right(self) -> Any:
        """The result in float64."""
        (scale, zero), (of_y, y_zero) = OF_X[self.type], OF_Y[self.type]
        weight = (self.whole.astype(float) - self.w_zero) * self.w_scale
        x = (quantized(self.x, scale, zero, self.type) - zero) * scale
        y = x @ weight + self.bias * (scale * self.w_scale)
        return (quantized(y, of_y, y_zero, self.type) - y_zero) * of_y

    def arrays(self, *, turned: bool) -> dict[str, Any]:
        """The constants of the file."""
        found: dict[str, Any] = {"w": self.whole.T if turned else self.whole, "bias": self.bias}
        found["ws"] = self.w_scale if self.w_scale.size > 1 else self.w_scale[0]
        found["wz"] = np.full(np.shape(found["ws"]), self.w_zero, self.whole.dtype)
        for name, (scale, zero) in {"x": OF_X[self.type], "y": OF_Y[self.type]}.items():
            found |= {f"{name}s": np.float32(scale), f"{name}z": np.array(zero, self.type)}
        found["bs"] = (found["xs"] * found["ws"]).astype(np.float32)
        return found

    def model(self, nodes: list[Any], *, turned: bool = False, domain: str = "") -> Any:
        """The file with these nodes, of which the first quantizes x and the last makes y."""
        first = helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"])
        last = helper.make_node("DequantizeLinear", ["p", "ys", "yz"], ["y"])
        held = [
            numpy_helper.from_array(np.ascontiguousarray(array), name)
            for name, array in self.arrays(turned=turned).items()
        ]
        ends = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [ROWS, size])
            for name, size in (("x", K), ("y", N))
        ]
        graph = helper.make_graph([first, *nodes, last], "g", ends[:1], ends[1:], held)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(domain or "own", 1)]
        return helper.make_model(graph, opset_imports=opsets)


def around_gemm(axis: int) -> list[Any]:
    """The nodes of a Gemm between nodes that dequantize and quantize."""
    return [
        helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["dw"], axis=axis),
        helper.make_node("DequantizeLinear", ["bias", "bs"], ["db"], axis=0),
        helper.make_node("Gemm", ["d", "dw", "db"], ["h"], transB=1 - axis),
        helper.make_node("QuantizeLinear", ["h", "ys", "yz"], ["p"]),
    ]


def around_matmul() -> list[Any]:
    """The same with MatMul, the weight transposed by a node, and an addition after it."""
    return [
        helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["dw"], axis=0),
        helper.make_node("Transpose", ["dw"], ["t"], perm=[1, 0]),
        helper.make_node("DequantizeLinear", ["bias", "bs"], ["db"], axis=0),
        helper.make_node("MatMul", ["d", "t"], ["m"]),
        helper.make_node("Add", ["m", "db"], ["h"]),
        helper.make_node("QuantizeLinear", ["h", "ys", "yz"], ["p"]),
    ]


def of_integers() -> list[Any]:
    """A Gemm of integers, as ONNX Runtime writes it."""
    given = ["q", "xs", "xz", "w", "ws", "wz", "bias", "ys", "yz"]
    return [helper.make_node("QGemm", given, ["p"], domain="com.microsoft", transB=1)]


def sums_of_integers() -> list[Any]:
    """A product whose sums are integers, which are scaled after it."""
    return [
        helper.make_node("MatMulInteger", ["q", "w", "xz", "wz"], ["sums"]),
        helper.make_node("Add", ["sums", "bias"], ["both"]),
        helper.make_node("Cast", ["both"], ["f"], to=1),
        helper.make_node("Mul", ["f", "bs"], ["h"]),
        helper.make_node("QuantizeLinear", ["h", "ys", "yz"], ["p"]),
    ]


CASES = [
    ("uint8", "int8", True, around_gemm(0), True),
    ("int8", "uint8", False, around_gemm(1), False),
    ("int8", "int8", True, around_matmul(), True),
    ("uint8", "uint8", True, of_integers(), True),
    ("uint8", "int8", False, sums_of_integers(), False),
]


def products_of(network: Any) -> list[Product]:
    """The products of a network."""
    return [node for node in every_node(network.results) if isinstance(node, Product)]


def test_quantized_layers_are_products_of_integers_near_float64() -> None:
    layers = [Layer(x, w, columns=columns) for x, w, columns, _, _ in CASES]
    loaded = [
        tilewright.onnx.load(layer.model(nodes, turned=turned, domain="com.microsoft"))
        for layer, (_, _, _, nodes, turned) in zip(layers, CASES, strict=True)
    ]
    kernels = tw.compile_many([(one.network, None, "host") for one in loaded])
    for layer, one, kernel in zip(layers, loaded, kernels, strict=True):
        (product,) = products_of(one.network)
        assert product.sums == "s32"
        found = kernel(layer.x, kernel.pack(one.weights))
        away = np.abs(found - layer.right) / OF_Y[layer.type][0]
        # One step of rounding where a number is half way between two integers.
        assert away.max() < 1.01
        assert np.mean(away > 0.01) < 0.02
        assert np.ptp(layer.right) > 20 * OF_Y[layer.type][0]


DYNAMIC = """g (float[9, 37] x) => (float[9, 20] y)
{ q, s, z = DynamicQuantizeLinear (x)
  m = MatMulInteger (q, w, z, wz)
  f = Cast <to: int = 1> (m)
  both = Mul (s, ws)
  y = Mul (f, both) }"""


def test_scales_that_the_call_computes() -> None:
    layer = Layer("uint8", "uint8", columns=False)
    file = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{DYNAMIC}')
    held = layer.arrays(turned=False)
    file.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(held[name]), name) for name in ("w", "ws", "wz")
    )
    network, weights = tilewright.onnx.load(file)
    assert [product.sums for product in products_of(network)] == ["s32"]
    net = tw.compile(network)
    x = layer.x
    scale = (max(x.max(), 0) - min(x.min(), 0)) / np.float32(255)
    zero = np.rint(-x.min() / scale)
    near = (quantized(x.astype(float), scale, zero, "uint8") - zero) * scale
    right = near @ ((layer.whole.astype(float) - layer.w_zero) * layer.w_scale)
    step = float(scale * np.abs(layer.whole.astype(float) - layer.w_zero).max() * layer.w_scale[0])
    assert np.abs(net(x, net.pack(weights)) - right).max() < 1.01 * step


ONE_HOT = """g (int64[n] i) => (float[n, 2] y) <float[3, 2] w = {1, 2, 3, 4, 5, 6}>
{ depth = Constant <value_int: int = 3> ()
  values = Constant <value = float[2] {0, 1}> ()
  h = OneHot (i, depth, values)
  y = MatMul (h, w) }"""
EQUAL = """g (int64[n] i) => (float[n, 2] y)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, int64[3] range = {0, 1, 2}, int64[1] last = {1}>
{ u = Unsqueeze (i, last)
  e = Equal (u, range)
  h = Cast <to: int = 1> (e)
  y = MatMul (h, w) }"""


@pytest.mark.parametrize(("graph", "below"), [(ONE_HOT, [3, 4]), (EQUAL, [0, 0])])
def test_a_one_hot_times_a_matrix_takes_its_rows(graph: str, below: list[int]) -> None:
    file = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{graph}')
    network, weights = tilewright.onnx.load(file)
    assert not products_of(network)
    assert any(isinstance(node, Take) for node in every_node(network.results))
    net = tw.compile(network)
    found = net(np.array([2, 0, 3, -2], np.int32), net.pack(weights))
    np.testing.assert_array_equal(found, [[5, 6], [1, 2], [0, 0], below])


MOVED = """g (float[2, 3] x) => (float[3, 2] y) <float s = {0.3}, uint8 z = {7}, float t = {0.4}>
{ q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  m = Transpose (d)
  again = QuantizeLinear (m, SCALE, z)
  y = DequantizeLinear (again, SCALE, z) }"""


@pytest.mark.parametrize(("scale", "roundings"), [("s", 1), ("t", 2)])
def test_moved_integers_are_not_rounded_again(scale: str, roundings: int) -> None:
    text = MOVED.replace("SCALE", scale)
    file = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}')
    network = tilewright.onnx.load(file, batch=False).network
    assert repr(network.results).count("round(") == roundings


def blocks(bits: int, zeros: bool) -> tuple[Any, Any, Any, Any]:
    """Elements (n, k), scales and zero points of blocks of 32 elements; the weight in float64."""
    rng = np.random.default_rng(bits)
    q = rng.integers(0, 2**bits, (N, 96))
    scales = rng.uniform(0.01, 0.1, (N, 3)).astype(np.float32)
    zero = rng.integers(0, 2**bits, (N, 3)) if zeros else np.full((N, 3), 2 ** (bits - 1))
    wide = (np.repeat(each, 32, axis=1) for each in (zero, scales.astype(float)))
    less, factors = wide
    return q, scales, zero, (q - less) * factors


def test_weights_of_few_bits_stay_so() -> None:
    q, scales, _, right = blocks(4, zeros=False)
    signed = helper.make_tensor("w", onnx.TensorProto.INT4, (N, 96), (q - 8).ravel())
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1, block_size=32),
        helper.make_node("Gemm", ["x", "d"], ["y"], transB=1),
    ]
    files = [(nodes, [signed, numpy_helper.from_array(scales, "s")], right)]
    q, scales, zero, right = blocks(4, zeros=True)
    even = np.pad(zero, ((0, 0), (0, 1)))
    packed = [(each[:, ::2] | each[:, 1::2] << 4).astype(np.uint8) for each in (q, even)]
    held = {"w": packed[0].reshape(N, 3, 16), "s": scales.ravel(), "z": packed[1].ravel()}
    how = {"K": 96, "N": N, "bits": 4, "block_size": 32, "domain": "com.microsoft"}
    node = helper.make_node("MatMulNBits", ["x", "w", "s", "z"], ["y"], **how)
    arrays = [numpy_helper.from_array(array, name) for name, array in held.items()]
    files.append(([node], arrays, right))
    x = np.random.default_rng(1).standard_normal((ROWS, 96)).astype(np.float32)
    for nodes, arrays, right in files:
        ends = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [ROWS, size])
            for name, size in (("x", 96), ("y", N))
        ]
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], arrays)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        file = helper.make_model(graph, opset_imports=opsets)
        network, weights = tilewright.onnx.load(file, batch=False)
        (weight,) = network.weights
        assert weight.quantized is not None and weight.quantized.block == 32
        net = tw.compile(network, target="avx2")
        found = net(x, net.pack(weights))
        np.testing.assert_allclose(found, x.astype(float) @ right.T, rtol=1e-5, atol=1e-5)
