"""Layers, and the backend of ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tilewright.errors import ArgumentTypeError, ArgumentValueError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.nn import functional  # noqa: E402

import tilewright.torch as tt  # noqa: E402
from tilewright.torch import Served, history  # noqa: E402
from tilewright.torch.backend import serve  # noqa: E402
from tilewright.torch.quantized import quantize_all  # noqa: E402

ACTIVATIONS: dict[str | None, Callable[..., Any]] = {
    None: lambda x: x, "relu": torch.relu, "gelu": functional.gelu, "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"), "sigmoid": torch.sigmoid,
    "tanh": torch.tanh, "hardswish": functional.hardswish,
}  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_layer_is_pytorchs(activation: str | None) -> None:
    plain = torch.nn.Linear(12, 20)
    layer = tt.Linear.from_float(plain, activation)
    function, x = ACTIVATIONS[activation], torch.randn(3, 4, 12)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), function(plain(x)), atol=1e-5, rtol=1e-4)
    found = torch.autograd.grad(layer(x).square().sum(), [plain.weight, plain.bias])
    wanted = torch.autograd.grad(function(plain(x)).square().sum(), [plain.weight, plain.bias])
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inputs_of_any_shape_and_strides(dtype: Any) -> None:
    layer = tt.Linear(12, 20, bias=False, dtype=dtype).requires_grad_(False)
    for frozen in (False, True):
        if frozen:
            layer.freeze()
        for x in unusual(12)[: None if dtype == torch.float32 else 5]:
            x = x.to(dtype)
            want = functional.linear(x.float(), layer.weight.float())
            out = layer(x)
            assert out.dtype == dtype
            torch.testing.assert_close(out.float(), want, atol=0.05, rtol=0.02)


def unusual(length: int) -> list[Any]:
    """Inputs whose rows are in unusual places: none, apart, columns, repeated, overlapping."""
    return [
        torch.randn(length), torch.randn(0, length), torch.randn(5, 2 * length)[:, ::2],
        torch.randn(length, 5).T, torch.randn(1, length).expand(4, length),
        torch.randn(3, 1).expand(3, length), torch.randn(40).unfold(0, length, 4),
        torch.randn(2, 1, length).expand(2, 3, length),
        torch.complex(torch.randn(3, length), torch.randn(3, length)).conj().imag,
    ]  # fmt: skip


def test_gradients_of_rows_that_repeat() -> None:
    layer, row = tt.Linear(12, 20), torch.randn(1, 12, requires_grad=True)

    def found(function: Any) -> Any:
        given = [row, layer.weight, layer.bias]
        return torch.autograd.grad(function(row.expand(4, 12)).square().sum(), given)

    wanted = found(lambda x: functional.linear(x, layer.weight, layer.bias))
    for got, want in zip(found(layer), wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("input_range", [None, (-6.0, 6.0)])
def test_quantised_layers_of_rows_that_repeat(input_range: Any) -> None:
    layer = tt.QuantizedLinear.from_float(torch.nn.Linear(16, 8), input_range=input_range)
    for x in unusual(16):
        torch.testing.assert_close(layer(x), layer(x.contiguous()))


def test_layers_refuse_what_they_do_not_have() -> None:
    layer = tt.Linear(12, 20)
    with pytest.raises(ArgumentTypeError, match="of its weight's type"):
        layer(torch.randn(5, 12, dtype=torch.float64))
    with pytest.raises(ArgumentValueError, match="no such activation"):
        tt.Linear(12, 20, activation="cubic")
    with pytest.raises(ArgumentValueError, match=r"rows as long(?s:.*)\(\.\.\., 12\)"):
        layer(torch.randn(2, 3, 8))
    with pytest.raises(ArgumentValueError, match="rows as long"):
        layer(torch.tensor(1.0))
    assert "activation=relu" in repr(tt.Linear(12, 20, activation="relu"))


@pytest.mark.parametrize("input_range", [None, (-4.0, 4.0)])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_a_quantised_layer_is_what_its_integers_say(input_range: Any, activation: Any) -> None:
    plain = torch.nn.Linear(64, 24)
    layer = tt.QuantizedLinear.from_float(plain, activation=activation, input_range=input_range)
    x = torch.randn(7, 64).clamp(-3.9, 3.9)
    weight = layer.weight.double() * layer.weight_scale.double()[:, None]
    if input_range is None:
        scale = x.abs().amax(-1, keepdim=True) / 127
        seen = torch.round(x / scale).double() * scale.double()
    else:
        codes = torch.round(x / layer.input_scale + layer.input_zero).clamp(0, 255)
        seen = (codes.double() - layer.input_zero) * layer.input_scale.double()
    want = seen @ weight.T + plain.bias.detach().double()
    want = torch.relu(want) if activation else want
    torch.testing.assert_close(layer(x).double(), want, atol=1e-4, rtol=1e-4)
    exact = ACTIVATIONS[activation](plain(x)).detach()
    assert (layer(x) - exact).abs().max() < 0.1
    again = tt.QuantizedLinear.from_float(
        torch.nn.Linear(64, 24), activation=activation, input_range=input_range
    )
    again.load_state_dict(layer.state_dict())
    torch.testing.assert_close(again(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_inputs_with_one_scale_become_integers(dtype: Any) -> None:
    """Halves round to even, numbers out of range saturate, NaN becomes 0; any strides."""
    scale, zero = torch.tensor(0.5), torch.tensor(3, dtype=torch.int32)
    given = torch.tensor([[0.25, 0.75, -0.25], [1e4, -1e4, float("nan")]], dtype=dtype)
    assert quantize_all(given, scale, zero).tolist() == [[4, 4, 2], [255, 0, 0]]
    assert quantize_all(given.T, scale, zero).tolist() == [[4, 255], [4, 0], [2, 0]]
    assert quantize_all(given[:0], scale, zero).shape == (0, 3)
    several = torch.randn(3, 500).to(dtype)
    codes = torch.round(several.double() * 2 + 3).clamp(0, 255)
    assert torch.equal(quantize_all(several, scale, zero).double(), codes)


# -- torch.compile ------------------------------------------------------------------------------


class Block(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A layer of BERT, small: projections, attention, two layers with GELU."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 64), torch.nn.Linear(64, width)
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

    def forward(self, x: Any) -> Any:
        count, length, _ = x.shape
        parts = self.qkv(x).view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(parts[0] @ parts[1].transpose(-1, -2) * 0.35, -1)
        x = self.first(x + self.out((weights @ parts[2]).transpose(1, 2).reshape(x.shape)))
        return self.second(x + self.down(functional.gelu(self.up(x))))


def inference(model: Any, *inputs: Any, **options: Any) -> Served:
    torch._dynamo.reset()
    model = model.eval()
    with torch.no_grad():
        compiled = torch.compile(model, backend="tilewright", fullgraph=True, **options)
        for x in inputs:
            torch.testing.assert_close(compiled(x), model(x), atol=1e-4, rtol=1e-4)
    return history[-1]


def test_a_layer_of_bert_and_sizes_that_change() -> None:
    given, alone = (torch.randn(2, 10, 32), torch.randn(2, 13, 32)), {"networks": False}
    found = inference(Block(), *given, dynamic=True, options=alone)
    assert found == Served(layers=4, activations=1, products=2)


def test_training_leaves_layers_to_inductor() -> None:
    torch._dynamo.reset()
    model, x = Block(), torch.randn(2, 10, 32)
    compiled = torch.compile(model, backend="tilewright", fullgraph=True)
    found = torch.autograd.grad(compiled(x).square().sum(), list(model.parameters()))
    wanted = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    assert history[-1].layers == 0
    for got, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)


def test_nodes_of_a_graph() -> None:
    """What is taken, and what is left alone: other types, numbers beside the operands."""

    def function(a: Any, b: Any, c: Any, d: Any) -> Any:
        return torch.addmm(c, a, b) + a.mm(b), torch.addmm(c, a, b, beta=2), d @ d

    seen = []

    def watch(graph: Any, inputs: Any) -> Any:
        seen.append(serve(graph))
        return graph.forward

    given = torch.randn(4, 5), torch.randn(5, 6), torch.randn(4, 6), torch.randn(3, 3).double()
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=watch, fullgraph=True)
    for got, want in zip(compiled(*given), function(*given), strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert [(each.layers, each.products) for each in seen] == [(0, 2)]
    assert [left.reason for left in seen[0].left] == [
        "it has arguments by name, such as alpha and beta",
        "float64 is not served",
    ]


def left_of(function: Any, *given: Any) -> Any:
    """What of a function's graph is left, and what the rest of it returns, without Inductor."""
    seen = []

    def watch(graph: Any, inputs: Any) -> Any:
        seen.append(serve(graph))
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        made = torch.compile(function, backend=watch, fullgraph=True)(*given)
    return seen[0], made


X, W = torch.randn(4, 5), torch.randn(3, 5)


@pytest.mark.parametrize(("given", "reason"), [
    ((X, torch.randn(5)), "the weight has the shape (5,)"),
    ((X, W, torch.randn(1)), "the bias has the shape (1,)"),
    ((X, W, torch.randn(())), "the bias has the shape ()"),
    ((X, W, torch.randn(4, 3)), "the bias has the shape (4, 3)"),
    ((X.half(), W.half()), "float16 is not served"),
    ((X.double(), W.double(), torch.randn(3).double()), "float64 is not served"),
], ids=["1-d weight", "bias (1,)", "bias ()", "bias (4, 3)", "half", "double"])  # fmt: skip
def test_layers_that_are_left_are_pytorchs(given: Any, reason: str) -> None:
    def layer(*given: Any) -> Any:
        return functional.linear(*given)

    served, made = left_of(layer, *given)
    assert served.layers == 0
    assert [left.reason for left in served.left] == [reason]
    torch.testing.assert_close(made, functional.linear(*given))


@pytest.mark.parametrize("term", [
    torch.ones(4, 3, dtype=torch.int64), torch.ones(2, 4, 3), torch.ones(5, 3),
], ids=["integers", "a stack", "other rows"])  # fmt: skip
def test_what_pytorch_does_not_add_is_not_added(term: Any) -> None:
    with pytest.raises(RuntimeError):
        torch.addmm(term, X, W.T)
    with pytest.raises(RuntimeError):
        left_of(torch.addmm, term, X, W.T)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (4, 1), (4, 3), ()])
def test_what_pytorch_adds_is_added(shape: Any) -> None:
    term = torch.randn(shape)
    served, made = left_of(torch.addmm, term, X, W.T)
    assert served == Served(0, 0, 1)
    torch.testing.assert_close(made, torch.addmm(term, X, W.T), atol=1e-5, rtol=1e-4)


def test_rows_that_repeat_in_a_graph() -> None:
    plain = torch.nn.Linear(5, 3)
    for given in (X[:1].expand(4, 5), X.reshape(-1).unfold(0, 5, 3)):
        served, made = left_of(plain, given)
        assert served == Served(1, 0, 0)
        torch.testing.assert_close(made, plain(given), atol=1e-5, rtol=1e-4)


# -- what is said of it --------------------------------------------------------------------------


def compiled_alone(model: Any, x: Any, recorded: bool = False) -> None:
    """Have the backend compile a model, and Inductor's part left out."""
    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch, torch.set_grad_enabled(recorded):
        patch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, *_, **__: graph)
        torch.compile(model, backend="tilewright")(x)


@pytest.mark.parametrize(("model", "x", "recorded", "said"), [
    (torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.randn(1, 3, 8),
     False, "fast path(?s:.*)set_fastpath_enabled"),
    (torch.nn.Linear(5, 3), X, True, r"gradients are recorded(?s:.*)no_grad"),
    (torch.nn.Linear(5, 3).half(), X.half(), False, r"float16(?s:.*)model\.bfloat16\(\)"),
    (torch.nn.Conv1d(5, 3, 1), torch.randn(1, 5, 4), False, "convolutions are not served"),
], ids=["fast path", "recorded", "half", "convolution"])  # fmt: skip
def test_a_graph_of_which_nothing_is_served_says_why(
    model: Any, x: Any, recorded: bool, said: str
) -> None:
    with pytest.warns(RuntimeWarning, match=f"serves no product(?s:.*){said}"):
        compiled_alone(model, x, recorded)
    assert tt.history[-1][:3] == (0, 0, 0) and len(tt.history[-1].left) == 1


def test_a_summary_counts_what_was_served_and_left(capsys: Any) -> None:
    def model(x: Any) -> Any:
        return torch.relu(plain(x)), x @ x.T, functional.linear(x, W[0]), torch.sin(x)

    plain = torch.nn.Linear(5, 3)
    compiled_alone(model, X)
    compiled_alone(torch.sin, X)
    assert tt.history[-1] == Served(0, 0, 0)
    tt.summary(tt.history[-2:])
    assert capsys.readouterr().out == (
        "graphs: 2\nserved: 1 layer, 1 activation in them, 1 other product\nleft: 1\n"
        "  1 x linear: the weight has the shape (5,)\n    try: a weight of two dimensions\n"
    )


def test_what_is_computed_in_another_type_is_left_alone() -> None:
    """Under autocast a layer of float32 is one of bfloat16."""
    torch._dynamo.reset()
    model, x = Block().eval(), torch.randn(2, 10, 32)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        compiled = torch.compile(model, backend="tilewright")
        torch.testing.assert_close(compiled(x), model(x), atol=0.1, rtol=0.1)
    assert history[-1][:3] == (0, 0, 0)
    assert {left.reason for left in history[-1].left} == {
        "types differ: bfloat16, float32",
        "bfloat16 is not served",
    }


def test_results_lie_on_the_cpu_whatever_the_default() -> None:
    with torch.device("meta"):
        layer = tt.Linear.from_float(torch.nn.Linear(4, 4, device="cpu")).requires_grad_(False)
        x = torch.ones(3, 4, device="cpu")
        assert layer(x).device.type == "cpu"
        assert tt.QuantizedLinear.from_float(layer)(x).device.type == "cpu"


@pytest.mark.parametrize("activation", [None, "tanh", "gelu"])
def test_gradients_of_gradients_of_a_layer(activation: str | None) -> None:
    layer, x = tt.Linear(5, 4, activation=activation), torch.randn(3, 5, requires_grad=True)
    ended = {None: lambda s: s, "tanh": torch.tanh, "gelu": functional.gelu}[activation]

    def second(function: Any) -> Any:
        (grad,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), [x, layer.weight, layer.bias])

    wanted = second(lambda x: ended(functional.linear(x, layer.weight, layer.bias)))
    for got, want in zip(second(layer), wanted, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
