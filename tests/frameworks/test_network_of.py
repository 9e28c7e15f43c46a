"""Modules of PyTorch as networks: results, weights by name, and what is refused."""

from __future__ import annotations

import doctest
import inspect
import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ArgumentError, SpecError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from support.torch_function import Function  # noqa: E402
from torch import nn  # noqa: E402

import tilewright.torch as tt  # noqa: E402

ROWS = tw.dim("rows")


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(7, 20), nn.ReLU(), nn.LayerNorm(20), nn.Dropout(), nn.Linear(20, 9), nn.GELU(),
        nn.BatchNorm1d(9), nn.Linear(9, 5, bias=False), nn.Softmax(-1),
    )  # fmt: skip


def elements(_: Any, x: Any) -> Any:
    y = torch.clamp(x, -1, 1) + nn.functional.hardtanh(x, -0.5, 2) - x.pow(2) / 3
    y = torch.where(x > 0.5, torch.tanh(y), nn.functional.leaky_relu(y, 0.2)) * torch.rsqrt(
        x**2 + 1
    )
    return y + x.mean(-1, keepdim=True) - torch.amax(x, 1, keepdim=True), x.sum(1)


def shapes(_: Any, x: Any) -> Any:
    first, second = x.reshape(x.shape[0], 2, 6).permute(1, 0, 2).unbind(0)
    a, b, c = x.split([2, 4, 6], dim=1)
    return torch.cat([first + second, b * 2, a, c[:, ::2]], dim=-1)


def test_the_example_runs() -> None:
    text = inspect.getdoc(tt.network_of) or ""
    example = doctest.DocTestParser().get_doctest(text, {"tw": tw}, "network_of", None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
    assert runner.run(example).failed == 0


def layers(m: Any, x: Any) -> Any:
    """Functions whose arguments, shapes or writes are easily misread. ``x`` is (rows, 6)."""
    written = x + m.one
    written.view(-1).relu_()  # into a view: the tensor changes too
    seen = (torch.tril(torch.ones(6, 6)) * torch.tensor([1.0, 2, 3, 4, 5, 6])).to(x.dtype)
    f = nn.functional
    shrunk = f.hardshrink(x, 0.3) + f.softshrink(x, 0.2) + f.threshold(x, 0.1, 2.0)
    return (
        written * x.shape[0], x.float()[:, 0], x @ seen, x[0] * m.p,
        m.prelu(x[:, :, None].expand(-1, 6, 6)),
        f.softplus(x, 2.0, 0.5) + f.logsigmoid(x) + f.selu(x) + f.celu(x, 0.7), shrunk, f.glu(x),
        torch.stack([x, -x], 1), x.var(-1), x.std(1, unbiased=False), x.logsumexp(1), x.max(1)[0],
        torch.addmm(m.one, x, seen.T, beta=0.5, alpha=2.0), torch.mv(x, m.v), m.norm(x[..., None]),
        torch.cat([m.one[None].expand(x.shape[0], 1), x], 1), x.narrow(1, 2, 3).clip(-0.1),
    )  # fmt: skip


def tokens(m: Any, i: Any) -> Any:
    return m.table(i) + m.places(torch.arange(5)) + m.kind(torch.zeros(5, dtype=torch.int64))


MODULES: dict[str, tuple[Any, Any]] = {
    "layers": (
        lambda: Function(
            layers,
            one=nn.Parameter(torch.ones(1) / 4),
            p=nn.Parameter(torch.ones(1, 1) / 3),
            v=nn.Parameter(torch.randn(6)),
            prelu=nn.PReLU(6),
            norm=nn.BatchNorm1d(6),
        ),
        [(ROWS, 6)],
    ),
    "any batch": (
        lambda: nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True),
        [(ROWS, 5, 16)],
    ),
    "mlp": (mlp, [(ROWS, 7)]),
    "elements": (lambda: Function(elements), [(ROWS, 6)]),
    "shapes": (lambda: Function(shapes), [(ROWS, 12)]),
    "transformer": (
        lambda: nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True),
        [(2, 5, 16)],
    ),
    "two inputs": (
        lambda: Function(lambda m, x, y: m.a(x) @ y.T, a=nn.Linear(4, 3)),
        [(ROWS, 4), (6, 3)],
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_results_are_near_those_of_the_module(name: str) -> None:
    make, wanted = MODULES[name]
    torch.manual_seed(0)
    module = make().eval()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.running_mean.uniform_(-1, 1)
            layer.running_var.uniform_(0.5, 2)
            layer.weight.data.uniform_(0.5, 2)
            layer.bias.data.uniform_(-1, 1)

    def drawn(rows: int) -> list[Any]:
        return [
            torch.randn([size if isinstance(size, int) else rows for size in shape])
            for shape in wanted
        ]

    network, weights = tt.network_of(module, tuple(drawn(4)), shapes=wanted)
    net = tw.compile(network)
    packed = [net.pack(weights)] if weights else []
    for rows in (11, 1):
        given = drawn(rows)
        with torch.no_grad():
            right = module.double()(*(each.double() for each in given))
        found = net(*given, *packed)
        both = (each if isinstance(each, tuple) else (each,) for each in (found, right))
        for one, other in zip(*both, strict=True):
            assert isinstance(one, torch.Tensor)
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=3e-6)


def test_rows_of_tables_and_one_tensor_twice() -> None:
    module = Function(
        tokens, table=nn.Embedding(9, 4), places=nn.Embedding(7, 4), kind=nn.Embedding(2, 4)
    )
    index = torch.tensor([[1, 8, 0, 1, 3], [2, 2, 2, 2, 2]])
    network, weights = tt.network_of(module, index)
    net = tw.compile(network)
    assert torch.equal(net(index, net.pack(weights)), module(index))
    x = torch.randn(2, 3)
    network, _ = tt.network_of(Function(lambda m, x, y: x - 2 * y), (x, x))
    assert [each.name for each in network.inputs] == ["tensors_0", "tensors_1"]


def gated() -> nn.Module:
    def layer(m: Any, x: Any) -> Any:
        y = m.norm(x)
        return x + m.down(nn.functional.silu(m.gate(y)) * m.up(y))

    return Function(
        layer, gate=nn.Linear(16, 24), up=nn.Linear(16, 24), down=nn.Linear(24, 16),
        norm=nn.RMSNorm(16),
    )  # fmt: skip


class Masked(nn.Module):  # type: ignore[misc]
    """Attention whose mask of booleans is a buffer; the third query has no key."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(16, 16)
        self.register_buffer("seen", torch.tril(torch.ones(9, 9, dtype=torch.bool)))
        self.register_buffer("rows", (torch.arange(9) != 2)[:, None])

    def forward(self, x: Any) -> Any:
        seen = self.seen & self.rows
        return self.out(nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=seen))


@pytest.mark.parametrize(
    ("make", "dtype"),
    [(gated, torch.bfloat16), (Masked, torch.bfloat16), (gated, torch.float16),
     (lambda: nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0), torch.bfloat16)],
)  # fmt: skip
def test_low_precision_is_as_near_to_float64_as_the_module(make: Any, dtype: Any) -> None:
    torch.manual_seed(0)
    module, x = make().eval().to(dtype), torch.randn(9, 16).to(dtype)
    network, weights = tt.network_of(module, x)
    net = tw.compile(network)
    found = net(x, net.pack(weights))
    kept = {str(array.dtype) for array in weights.values()}
    assert kept <= {str(dtype).removeprefix("torch."), "float32"} and found.dtype == dtype
    with torch.no_grad():
        plain, right = module(x), module.double()(x.double())
    ours, theirs = ((each.double() - right).square().mean() for each in (found, plain))
    assert ours <= 1.3 * theirs


def test_weights_are_copies_under_the_names_of_the_module() -> None:
    module = mlp().eval()
    network, weights = tt.network_of(module, torch.ones(2, 7))
    assert network.inputs[0].shape == (2, 7)
    assert [*weights][:3] == ["n0_weight", "n0_bias", "n2_weight"]
    before = weights["n0_weight"].copy()
    module[0].weight.data.zero_()
    np.testing.assert_array_equal(weights["n0_weight"], before)
    assert weights["n0_weight"].shape == (7, 20) and weights["n0_weight"].flags.c_contiguous


@pytest.mark.parametrize(
    ("make", "example", "wanted", "says"),
    [
        (lambda: nn.Dropout().train(), (2, 3), None, "networks are not trained"),
        (lambda: nn.Conv1d(3, 2, 1), (1, 3, 4), None, r"aten\.conv1d.*not imported"),
        (lambda: nn.Linear(3, 2), (4, 3), [(3, 3)], "not those of the example"),
        (lambda: nn.Linear(3, 2), (1, 3), [(ROWS, 3)], "torch.export cannot"),
        (lambda: Function(lambda m, x: x if x.sum() > 0 else -x), (2, 3), None, "torch.export"),
        (lambda: nn.BatchNorm1d(3).train(), (2, 3), None, "networks are not trained"),
        (lambda: Function(lambda m, x: torch.ones(3)), (2, 3), None, ""),
        (lambda: Function(lambda m, x: x > 0), (2, 3), None, "a tensor of booleans"),
        (lambda: Function(lambda m, x: x.add_(1)), (2, 3), None, "writes into an input"),
        (lambda: Function(lambda m, x: x + torch.rand(3)), (2, 3), None, "not imported"),
        (lambda: torch.jit.trace(nn.ReLU(), torch.ones(2)), (2, 3), [(ROWS, 3)], "torch.export"),
        (lambda: Function(lambda m, x: (x > 0) + (x < 1)), (2, 3), None, "are not added"),
    ],
)  # fmt: skip
def test_what_no_network_can_be_is_refused(make: Any, example: Any, wanted: Any, says: str) -> None:
    with pytest.raises(SpecError) as caught:
        tt.network_of(make(), torch.ones(*example), shapes=wanted)
    assert re.search(says, caught.value.problem)


def test_other_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match="made of a module"):
        tt.network_of(3, torch.ones(1))
    with pytest.raises(ArgumentError, match="an example is a tensor"):
        tt.network_of(nn.Linear(3, 2), 3)
