"""Layers, and the backend of ``torch.compile``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tilewright.errors import ArgumentTypeError, ArgumentValueError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.nn import functional  # noqa: E402

import tilewright.torch as tt  # noqa: E402
from tilewright.torch.backend import Served, history, serve  # noqa: E402

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
    for x in (
        torch.randn(12),
        torch.randn(0, 12),
        torch.randn(5, 24)[:, ::2],
        torch.randn(12, 5).T,
    ):
        x = x.to(dtype)
        want = functional.linear(x.float(), layer.weight.float())
        out = layer(x)
        assert out.dtype == dtype
        torch.testing.assert_close(out.float(), want, atol=0.05, rtol=0.02)


def test_a_weight_that_changes_is_packed_again() -> None:
    layer = tt.Linear(12, 20).requires_grad_(False)
    x = torch.randn(5, 12)

    def right() -> None:
        want = functional.linear(x, layer.weight, layer.bias)
        torch.testing.assert_close(layer(x), want, atol=1e-5, rtol=1e-4)

    right()
    layer.weight.mul_(2)
    right()
    layer.weight.data = torch.randn(20, 12)
    right()
    layer.load_state_dict(tt.Linear(12, 20).state_dict())
    right()
    for _ in range(5):  # memory that is freed and given again
        layer = tt.Linear(12, 20).requires_grad_(False)
        right()


def test_layers_refuse_what_they_do_not_have() -> None:
    layer = tt.Linear(12, 20)
    with pytest.raises(ArgumentTypeError, match="of its weight's type"):
        layer(torch.randn(5, 12, dtype=torch.float64))
    with pytest.raises(ArgumentValueError, match="no such activation"):
        tt.Linear(12, 20, activation="cubic")
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
    found = inference(Block(), torch.randn(2, 10, 32), torch.randn(2, 13, 32), dynamic=True)
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
    assert seen == [Served(layers=0, activations=0, products=2)]


def test_what_is_computed_in_another_type_is_left_alone() -> None:
    """Under autocast a layer of float32 is one of bfloat16."""
    torch._dynamo.reset()
    model, x = Block().eval(), torch.randn(2, 10, 32)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        compiled = torch.compile(model, backend="tilewright")
        torch.testing.assert_close(compiled(x), model(x), atol=0.1, rtol=0.1)
    assert history[-1] == Served(0, 0, 0)


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
