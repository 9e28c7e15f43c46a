"""Layers never compute with an old weight: each way of writing one, unfrozen, frozen, compiled."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentTypeError, ArgumentValueError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.nn import functional  # noqa: E402

import tilewright.torch as tt  # noqa: E402
from tilewright.torch.backend import serve  # noqa: E402
from tilewright.torch.subgraphs.replace import replace  # noqa: E402

X = torch.randn(5, 12)


def right(layer: Any, computed: Callable[[Any], Any] | None = None) -> None:
    """The layer, or what is computed for it, is PyTorch's of the weight that it has now."""
    with torch.no_grad():
        want = X.double() @ layer.weight.double().T + layer.bias.double()
        found = layer(X) if computed is None else computed(X)
        torch.testing.assert_close(found.double(), want, atol=1e-4, rtol=1e-4, equal_nan=True)


# --- ways of writing a weight ------------------------------------------------------------------


def optimizer(kind: Any) -> Callable[[Any], None]:
    def step(layer: Any) -> None:
        steps = kind(layer.parameters(), lr=0.1, fused=True)
        functional.linear(X, layer.weight, layer.bias).square().sum().backward()
        before = layer.weight._version
        steps.step()
        assert layer.weight._version == before, "PyTorch counts this: it is no longer such a case"

    return step


def lora(layer: Any) -> None:
    layer.weight.data += torch.randn(20, 2) @ torch.randn(2, 12)


def dlpack(layer: Any) -> None:
    torch.from_dlpack(layer.weight.detach()).mul_(2)
    np.from_dlpack(layer.weight.detach())[0] = 7


def storage(layer: Any) -> None:
    layer.weight.untyped_storage().copy_(torch.randn(20, 12).untyped_storage())


def buffer(layer: Any) -> None:
    view: Any = memoryview(layer.weight.detach().numpy())
    view[3, 4] = 9.0


def average(layer: Any) -> None:
    for parameter in layer.parameters():
        parameter.data.mul_(0.9).add_(torch.randn_like(parameter), alpha=0.1)


#: Writes that PyTorch does not count.
UNSEEN: dict[str, Callable[[Any], Any]] = {
    **{
        f"fused {kind.__name__}": optimizer(kind)
        for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
    },
    "LoRA": lora,
    "average": average,
    "data.copy_": lambda layer: layer.weight.data.copy_(torch.randn(20, 12)),
    "initialiser": lambda layer: torch.nn.init.normal_(layer.weight.data),
    "numpy": lambda layer: np.multiply(layer.weight.detach().numpy(), 2, layer.weight.data.numpy()),
    "buffer": buffer,
    "DLPack": dlpack,
    "storage": storage,
}


def counted(layer: Any) -> None:
    with torch.no_grad():
        layer.weight.mul_(2)


def replaced(layer: Any) -> None:
    layer.weight = torch.nn.Parameter(torch.randn(20, 12), requires_grad=False)


#: Writes that a frozen layer sees.
SEEN: dict[str, Callable[[Any], Any]] = {
    "mul_": counted,
    "another parameter": replaced,
    "other data": lambda layer: setattr(layer.weight, "data", torch.randn(20, 12)),
}


def served(layer: Any) -> Callable[[Any], Any]:
    """A layer of PyTorch with the same weight in the backend of ``torch.compile``."""
    plain = torch.nn.Linear(12, 20)
    plain.weight, plain.bias = layer.weight, layer.bias

    def compiler(graph: Any, inputs: Any) -> Any:
        assert serve(graph).layers == 1
        return graph.forward

    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(plain, backend=compiler, fullgraph=True)
        compiled(X)
    return compiled  # type: ignore[no-any-return]


@pytest.mark.parametrize("write", UNSEEN)
def test_a_result_is_of_the_weight_as_it_is(write: str) -> None:
    layer = tt.Linear(12, 20)
    compiled = served(layer)
    right(layer)
    UNSEEN[write](layer)
    right(layer)
    right(layer, compiled)


def joined(layer: Any, monkeypatch: Any) -> Callable[[Any], Any]:
    """The layer between two products, in one network that packs all weights."""
    ends = [torch.linalg.qr(torch.randn(n, n))[0] for n in (12, 20)]

    def function(x: Any) -> Any:
        return functional.linear(x @ ends[0], layer.weight, layer.bias) @ ends[1]

    def compiler(graph: Any, inputs: Any) -> Any:
        assert [each.products for each in replace(graph, inputs, freezes=False).networks] == [3]
        return graph.forward

    monkeypatch.setattr("tilewright.torch.subgraphs.replace.FEWEST", 0)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend=compiler, fullgraph=True)
    before, after = (torch.linalg.inv(x.double()) for x in ends)
    return lambda x: compiled((x.double() @ before).float()).double() @ after


@pytest.mark.parametrize("write", [*UNSEEN, *SEEN, "loaded", "NaN"])
def test_a_network_has_the_weights_as_they_are(write: str, monkeypatch: Any) -> None:
    """At the call after a change, at the next one, which packs, and at those after it."""
    layer = torch.nn.Linear(12, 20)
    more: dict[str, Callable[[Any], Any]] = {
        "loaded": lambda layer: layer.load_state_dict(torch.nn.Linear(12, 20).state_dict()),
        "NaN": lambda layer: layer.weight.data.fill_(float("nan")),
    }
    compiled = joined(layer, monkeypatch)
    right(layer, compiled)
    for _ in range(2):
        (UNSEEN | SEEN | more)[write](layer)
        for _ in range(3):
            right(layer, compiled)


def test_training_by_a_fused_optimizer_ends_where_its_weight_does() -> None:
    layer = tt.Linear(8, 1)
    steps = torch.optim.Adam(layer.parameters(), lr=0.3, fused=True)
    x = torch.randn(64, 8)
    y = x @ torch.arange(8.0)[:, None]
    for _ in range(60):
        steps.zero_grad()
        functional.mse_loss(layer(x), y).backward()
        steps.step()
    with torch.no_grad():
        found = functional.mse_loss(layer(x), y)
        real = functional.mse_loss(functional.linear(x, layer.weight, layer.bias), y)
    torch.testing.assert_close(found, real, atol=1e-3, rtol=1e-3)


# --- frozen ------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", SEEN)
def test_a_frozen_layer_refuses_a_weight_that_was_written(write: str) -> None:
    layer = tt.Linear(12, 20).freeze()
    right(layer)
    SEEN[write](layer)
    with pytest.raises(ArgumentValueError, match=r"was changed(?s:.*)layer\.freeze\(\)"):
        layer(X)
    layer.freeze()
    right(layer)
    SEEN[write](layer.unfreeze())
    right(layer)


@pytest.mark.parametrize("write", [name for name in UNSEEN if "fused" not in name])
def test_what_freeze_documents(write: str) -> None:
    """Writes that PyTorch does not count are packed by the next ``freeze``."""
    layer = tt.Linear(12, 20).freeze()
    before = layer(X)
    UNSEEN[write](layer)
    assert torch.equal(layer(X), before) or write == "average"  # whose bias is read
    layer.freeze()
    right(layer)


def test_freezing_says_so_and_ends_training() -> None:
    layer = tt.Linear(12, 20)
    layer.bias.requires_grad_(False)
    assert not layer.frozen and "frozen" not in repr(layer)
    assert layer.freeze() is layer
    assert layer.frozen and repr(layer).endswith("activation=None, frozen)")
    assert not layer.weight.requires_grad and layer.train().frozen and layer.eval().frozen
    x = torch.randn(3, 12, requires_grad=True)
    (grad,) = torch.autograd.grad(layer(x).sum(), x)
    torch.testing.assert_close(grad, layer.weight.sum(0).expand(3, 12), atol=1e-4, rtol=1e-4)
    layer.weight.requires_grad_(True)
    with pytest.raises(ArgumentValueError, match=r"to be trained(?s:.*)unfreeze"):
        layer(X)
    layer.freeze().unfreeze()
    assert layer.weight.requires_grad and not layer.bias.requires_grad and not layer.frozen


def test_a_frozen_layer_is_loaded_moved_and_copied() -> None:
    layer = tt.Linear(12, 20).freeze()
    state = layer.state_dict()
    assert list(state) == ["weight", "bias"]
    for assign in (False, True):
        layer.load_state_dict(tt.Linear(12, 20).state_dict(), assign=assign)
        right(layer)
    again: list[Any] = [copy.deepcopy(layer), copy.copy(layer), pickle.loads(pickle.dumps(layer))]
    file = io.BytesIO()
    torch.save(layer, file, _use_new_zipfile_serialization=False)  # elements come last in it
    file.seek(0)
    again.append(torch.load(file, weights_only=False))
    for made in again:
        assert made.frozen
        right(made)
    assert layer.to(torch.bfloat16).frozen
    want = functional.linear(X.bfloat16(), layer.weight, layer.bias)
    torch.testing.assert_close(layer(X.bfloat16()), want, atol=0.05, rtol=0.05)
    layer.to("meta").to_empty(device="cpu").float().load_state_dict(state)
    right(layer)
    with pytest.raises(ArgumentTypeError, match="float64"):
        layer.double()(X.double())
    with pytest.raises(ArgumentTypeError, match="meta"):
        tt.Linear(12, 20, device="meta").freeze()


def test_tensors_that_stand_in_for_a_frozen_weight_are_read() -> None:
    layer, call = tt.Linear(12, 20).freeze(), torch.func.functional_call
    other = {"weight": torch.randn(20, 12), "bias": torch.randn(20)}
    with pytest.raises(ArgumentValueError, match="was changed"):
        call(layer, other, (X,))
    want = functional.linear(X, other["weight"], other["bias"])
    found = torch.func.functionalize(lambda x: call(layer, other, (x,)))(X)
    torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(torch.func.functionalize(layer)(X), layer(X))
    torch.nn.utils.parametrizations.weight_norm(layer)
    with pytest.raises(ArgumentValueError, match="was changed"):
        layer(X)
    right(layer.unfreeze())
    with pytest.raises(ArgumentValueError, match="computed at each call"):
        layer.freeze()


def test_frozen_layers_in_graphs_have_packed_weights() -> None:
    block = tt.BlockQuantizedLinear.from_float(torch.nn.Linear(20, 16), tw.Quantized("s8"))
    fixed = tt.QuantizedLinear.from_float(torch.nn.Linear(16, 16), input_range=(-9, 9))
    rows = tt.QuantizedLinear.from_float(torch.nn.Linear(16, 8))
    model = torch.nn.Sequential(tt.Linear(12, 20).freeze(), block, fixed, rows)
    with torch.no_grad():
        for exported in (
            torch.export.export(model, (X,)),
            torch.export.export(model, (X,), strict=True),
        ):
            called = [str(n.target) for n in exported.graph.nodes if "tilewright" in str(n.target)]
            assert [name.split(".")[1] for name in called] == [
                "linear_of_packed", "linear_of_packed", "fixed_linear_of_packed",
                "linear_of_packed",
            ]  # fmt: skip
            file = io.BytesIO()
            torch.export.save(exported, file)
            file.seek(0)
            assert torch.equal(torch.export.load(file).module()(X), model(X))
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        assert torch.equal(compiled(X), model(X))
        model[0].load_state_dict(tt.Linear(12, 20).state_dict())
        block.load_state_dict(
            tt.BlockQuantizedLinear.from_float(torch.nn.Linear(20, 16), block.format).state_dict()
        )
        assert torch.equal(compiled(X), model(X))


def test_a_graph_that_inductor_freezes_has_packed_weights() -> None:
    plain = torch.nn.Linear(12, 20).requires_grad_(False)
    torch._dynamo.reset()
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        compiled = torch.compile(plain, backend="tilewright")
        right(plain, compiled)
        before = compiled(X)
        plain.weight.data.mul_(2)
        assert torch.equal(compiled(X), before)


def test_packed_bytes_of_another_format_are_refused() -> None:
    layer = tt.Linear(12, 20).freeze()
    packed: Any = layer._bytes
    run = torch.ops.tilewright.linear_of_packed
    other = layer._format.replace("12", "13", 1)
    for format, given in ((other, packed), (layer._format, packed[:-1]), ("f32 of mine", packed)):
        with pytest.raises((ArgumentValueError, ArgumentTypeError)):
            run(X, given, layer.bias, format, 20, "", "float", "")


# --- weights that quantization made ------------------------------------------------------------

QUANTIZED: dict[str, Callable[[], Any]] = {
    "rows": lambda: tt.QuantizedLinear.from_float(torch.nn.Linear(12, 20)),
    "fixed": lambda: tt.QuantizedLinear.from_float(torch.nn.Linear(12, 20), input_range=(-6, 6)),
    "blocks": lambda: tt.BlockQuantizedLinear.from_float(
        torch.nn.Linear(12, 20), tw.Quantized("u4", scale="f16", zero="u4", block=8)
    ),
}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_layers_are_frozen_when_they_are_made(kind: str) -> None:
    layer, other = QUANTIZED[kind](), QUANTIZED[kind]()
    assert layer.frozen and repr(layer).endswith("frozen)")
    assert not torch.equal(layer(X), other(X))
    layer.load_state_dict(other.state_dict())
    assert torch.equal(layer(X), other(X))
    made = pickle.loads(pickle.dumps(layer))
    assert made.frozen and torch.equal(made(X), other(X))
    assert torch.equal(copy.deepcopy(layer).to(torch.bfloat16)(X), other(X))
    layer.weight.zero_()
    with pytest.raises(ArgumentValueError, match="frozen layer was changed"):
        layer(X)


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("name", ["weight", "scales"])
def test_unfrozen_quantized_layers_read_their_buffers(kind: str, name: str) -> None:
    layer = QUANTIZED[kind]().unfreeze()
    assert not layer.frozen and "frozen" not in repr(layer)
    before = layer(X) - layer.bias
    tensor = getattr(layer, "weight_scale" if kind != "blocks" and name == "scales" else name)
    if name == "scales":
        tensor.data.mul_(2)
        torch.testing.assert_close(layer(X) - layer.bias, 2 * before, atol=1e-4, rtol=1e-3)
    else:
        tensor.numpy()[:] = tensor.numpy()[::-1].copy()
    want = layer(X)
    assert not torch.allclose(want - layer.bias, before)
    assert torch.equal(layer.freeze()(X), want)
