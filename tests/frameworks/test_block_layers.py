"""Layers of weights of few bits, in calls, in ``torch.compile``, and saved."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentTypeError, ArgumentValueError, SpecError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import tilewright.torch as tt  # noqa: E402

Q4 = tw.Quantized("u4", scale="f16", zero=8, block=32)
FORMATS = [
    Q4,
    tw.Quantized("u4", scale="f16", zero="u4", block=64),
    tw.Quantized("s3", scale="f32", block=32),
    tw.Quantized("u2", scale="bf16", zero="bf16", block=16),
    tw.Quantized("f4_e2m1", scale="e8m0", block=32),
    tw.Quantized("f8_e4m3", scale="f32", block=(32, 16)),
    tw.Quantized("s8"),
]


def weights(layer: Any) -> Any:
    """What a layer's weight stands for, found without the layer's own code."""
    form, k = layer.format, layer.in_features
    codes = layer.weight.numpy().astype(np.int64)
    if form.stored.bits in (2, 4):
        shifts = np.arange(0, 8, form.stored.bits)
        codes = (codes[..., None] >> shifts & (1 << form.stored.bits) - 1).reshape(len(codes), -1)
    codes = codes[:, :k]
    if form.type == "f4_e2m1":
        table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        numbers = table[codes % 8] * np.where(codes >= 8, -1, 1)
    elif form.type == "f8_e4m3":
        numbers = layer.weight.view(torch.float8_e4m3fn).double().numpy()
    else:
        numbers = np.where(codes > form.stored.high, codes - 256, codes).astype(np.float64)
    scales = layer.scales.double().numpy()
    if form.scale == "e8m0":
        scales = 2.0 ** (scales - 127)
    block = form.block_of(k)

    def spread(each: Any) -> Any:
        columns = np.repeat(each, form.columns, axis=1)[:, : len(codes)]
        return np.repeat(columns, block, axis=0)[:k].T

    zeros = form.offset if layer.zeros is None else spread(layer.zeros.double().numpy())
    if form.zeros == "minima":
        return spread(scales) * numbers + zeros
    return spread(scales) * (numbers - zeros)


def quantized_rows(x: Any, block: int) -> Any:
    """Rows whose blocks are integers of 8 bits and a scale."""
    parts = x.double().reshape(len(x), -1, block)
    scale = parts.abs().amax(-1, keepdim=True) / 127
    return (torch.round(parts / scale) * scale).reshape(x.shape)


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_a_layer_is_what_its_numbers_say(form: tw.Quantized) -> None:
    plain = torch.nn.Linear(128, 24)
    layer = tt.BlockQuantizedLinear.from_float(plain, form, activation="relu", inputs="float")
    dequantized = torch.from_numpy(weights(layer))
    assert (dequantized - plain.weight.detach()).abs().max() < 0.1
    for shape in ((7, 128), (2, 3, 128), (128,)):
        x = torch.randn(shape)
        want = torch.relu(x.double() @ dequantized.T + plain.bias.detach().double())
        torch.testing.assert_close(layer(x).double(), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("inputs", "block"), [("blocks", 32), ("rows", 128)])
def test_inputs_become_integers(inputs: Any, block: int, dtype: Any) -> None:
    layer = tt.BlockQuantizedLinear.from_float(torch.nn.Linear(128, 24), Q4, inputs=inputs)
    x = torch.randn(5, 128).to(dtype)
    want = quantized_rows(x, block) @ torch.from_numpy(weights(layer)).T + layer.bias.double()
    loose = {"atol": 1e-3, "rtol": 1e-3} if dtype == torch.float32 else {"atol": 0.02, "rtol": 0.01}
    found = layer.to(dtype)(x)
    assert found.dtype == dtype and layer.scales.dtype == torch.float16
    torch.testing.assert_close(found.double(), want, **loose)


def test_a_matrix_of_a_container_is_a_layer() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(-(2**31), 2**31, (16, 8), np.int32)
    zeros = rng.integers(-(2**31), 2**31, (2, 1), np.int32)
    matrix = tw.from_gptq(words, zeros, rng.random((2, 8)).astype(np.float16) / 100)
    layer = tt.BlockQuantizedLinear(matrix, torch.ones(8), inputs="float")
    x = torch.randn(3, 128)
    np.testing.assert_array_equal(weights(layer).T, matrix.dequantize())
    want = x @ torch.from_numpy(matrix.dequantize()) + 1
    torch.testing.assert_close(layer(x), want, atol=1e-4, rtol=1e-4)


def test_torch_compile_sees_one_operator() -> None:
    layers = [tt.BlockQuantizedLinear.from_float(torch.nn.Linear(64, 64), f) for f in FORMATS[:2]]
    model = torch.nn.Sequential(layers[0], torch.nn.GELU(), layers[1])
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (1, 5):
        x = torch.randn(rows, 64)
        torch.testing.assert_close(compiled(x), model(x))
    given = (*(torch.randn(4, 64), layers[1].weight, layers[1].scales, layers[1].zeros, None),
             layers[1]._text, "blocks", "relu")  # fmt: skip
    results = torch.library.opcheck(torch.ops.tilewright.block_linear.default, given)
    assert set(results.values()) == {"SUCCESS"}


def test_a_state_is_saved_and_loaded() -> None:
    first, second = (
        tt.BlockQuantizedLinear.from_float(torch.nn.Linear(64, 16), Q4) for _ in range(2)
    )
    x = torch.randn(3, 64)
    assert not torch.equal(first(x), second(x))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(first(x), second(x))
    second.scales.mul_(2)
    with pytest.raises(ArgumentValueError, match="frozen layer was changed"):
        second(x)
    second.freeze()
    torch.testing.assert_close(2 * (first(x) - first.bias), second(x) - second.bias)
    other = tw.Quantized("u4", scale="f16", zero=7, block=32)
    with pytest.raises(ArgumentValueError, match="another format"):
        tt.BlockQuantizedLinear.from_float(torch.nn.Linear(64, 16), other).load_state_dict(
            first.state_dict()
        )


def test_a_state_of_eight_bits_has_its_zero_point() -> None:
    plain, x = torch.nn.Linear(64, 16), torch.randn(3, 64)
    first = tt.QuantizedLinear.from_float(plain, input_range=(-4, 4))
    second = tt.QuantizedLinear.from_float(plain, input_range=(0, 9))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))
    assert torch.equal(first.to(torch.bfloat16)(x), second(x))


def test_what_cannot_be_a_layer_says_so() -> None:
    plain = torch.nn.Linear(64, 16)
    layer = tt.BlockQuantizedLinear.from_float(plain, Q4)
    matrix = tw.quantize(np.ones((64, 16), np.float32), Q4)
    with pytest.raises(ArgumentTypeError, match="one matrix of few bits"):
        tt.BlockQuantizedLinear(plain.weight)
    with pytest.raises(ArgumentValueError, match=r"bias has the wrong shape"):
        tt.BlockQuantizedLinear(matrix, torch.zeros(3))
    with pytest.raises(ArgumentValueError, match="'blocks' or 'rows' or 'float'"):
        tt.BlockQuantizedLinear(matrix, inputs="bits")  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match=r"of shape \(3, 65\)"):
        layer(torch.randn(3, 65))
    with pytest.raises(ArgumentTypeError, match="float64"):
        layer(torch.randn(3, 64, dtype=torch.float64))
    with pytest.raises(SpecError):
        tt.BlockQuantizedLinear.from_float(plain, FORMATS[5], inputs="blocks")
    assert "format=Quantized(type='u4'" in repr(layer)


@pytest.mark.parametrize("name", ["q4_0", "Q8_0", "q4_K"])
def test_formats_have_the_names_of_containers(name: str) -> None:
    plain = torch.nn.Linear(256, 8)
    made = tt.BlockQuantizedLinear.from_float(plain, name)
    assert made.format == FORMS[name.lower()]
    for wrong in ("q9_9", 4):
        with pytest.raises(
            (ArgumentValueError, ArgumentTypeError), match=r"q4_0, q4_1(?s:.*)nvfp4"
        ):
            tt.BlockQuantizedLinear.from_float(plain, wrong)  # type: ignore[arg-type]


FORMS = {
    "q4_0": Q4, "q8_0": tw.Quantized("s8", scale="f16", block=32),
    "q4_k": tw.Quantized("u4", scale="f32", zero="f32", block=32),
}  # fmt: skip


class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Layers that are replaced, and one of each reason to leave one."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(32, 64), tt.Linear(64, 32, activation="relu")
        self.again = self.up
        self.table, self.heads = torch.nn.Embedding(4, 32), torch.nn.MultiheadAttention(32, 2)
        self.hooked, self.wide = torch.nn.Linear(32, 32), torch.nn.Linear(32, 8).double()
        self.hooked.register_forward_hook(lambda *_: None)
        self.out, self.meta = torch.nn.Linear(32, 4), torch.nn.Linear(32, 8, device="meta")
        self.broken, self.bare = torch.nn.Linear(32, 8), torch.nn.LayerNorm(32)
        torch.nn.init.constant_(self.broken.weight, float("nan"))


def test_a_model_is_quantized_in_place(capsys: Any) -> None:
    model = Model()
    want = torch.relu(model.down(model.up(torch.ones(2, 32)))).detach()
    made = tt.quantize_(model, "q4_0", only=lambda name, _: name != "out")
    assert list(made.replaced) == ["up", "down"] and made.format == Q4
    assert model.up is made.replaced["up"] is model.again
    assert model.down.activation == "relu" and isinstance(model.out, torch.nn.Linear)
    found = model.down(model.up(torch.ones(2, 32)))
    torch.testing.assert_close(found, want, atol=0.3, rtol=0.3)
    reasons = {
        "table": "Embedding", "heads": "MultiheadAttention is no", "heads.out_proj": "reads the",
        "hooked": "hooks", "wide": "float64", "out": "only=", "meta": "on meta", "broken": "nan",
    }  # fmt: skip
    assert list(made.left) == list(reasons)
    assert all(reasons[name] in reason for name, reason in made.left.items()), made.left
    printed = capsys.readouterr().out
    assert printed == f"{made}\n" and "\n  down: 64 to 32, inputs=blocks\n" in printed
    assert "\n  hooked: it has hooks\n" in printed


def test_what_cannot_be_quantized_in_place_says_so() -> None:
    with pytest.raises(ArgumentTypeError, match=r"module that holds it(?s:.*)from_float"):
        tt.quantize_(torch.nn.Linear(32, 8), "q4_0")
    with pytest.raises(ArgumentValueError, match="no low-bit format"):
        tt.quantize_(Model(), "int3")
