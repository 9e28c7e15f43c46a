"""Networks in place of sub-graphs: what is taken and what is left, and that results are right."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from support.torch_function import Function  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import tilewright.torch as tt  # noqa: E402
from tilewright.torch.subgraphs import call as calls  # noqa: E402
from tilewright.torch.subgraphs import replace as replacing  # noqa: E402
from tilewright.torch.subgraphs.digest import CHUNK, digest  # noqa: E402


@pytest.fixture(autouse=True)
def any_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Networks are made for few rows, too, and PyTorch takes layers apart."""
    monkeypatch.setattr(replacing, "FEWEST", 0)
    torch.backends.mha.set_fastpath_enabled(False)
    torch.manual_seed(0)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def compiled(model: Any, seen: list[Any] | None = None, **options: Any) -> Any:
    """A model whose graph has networks; PyTorch runs the rest as it is, without Inductor."""

    def watch(graph: Any, inputs: Any) -> Any:
        found = replacing.replace(graph, inputs, freezes=False)
        if seen is not None:
            seen.append(found)
        return graph.forward

    torch._dynamo.reset()
    return torch.compile(model, backend=watch, fullgraph=True, **options)


def check(model: Any, *several: Any, **options: Any) -> Any:
    """Compare with float64: a network is not farther from it than four times PyTorch's error."""
    seen: list[Any] = []
    model = model.eval()
    ours, exact = compiled(model, seen, **options), copy.deepcopy(model).double()
    with torch.no_grad():
        for given in several:
            again = [x.clone() for x in given], [x.double() for x in given]
            found, plain, right = ours(*given), model(*again[0]), exact(*again[1])
            for one, other, real in zip(*map(listed, (found, plain, right)), strict=True):
                assert one.dtype == other.dtype and one.shape == other.shape
                errors = [(x.double() - real.double()).abs().max() for x in (one, other)]
                assert errors[0] <= 4 * errors[1] + 1e-6 * real.double().abs().max()
    return seen


def listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, tuple) else [given]


def products(seen: list[Any]) -> list[list[int]]:
    return [[each.products for each in found.networks] for found in seen]


def bert(width: int = 16, heads: int = 2) -> Any:
    def layer(m: Any, x: Any) -> Any:
        count, length, _ = x.shape
        parts = m.qkv(x).view(count, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(parts[0] @ parts[1].transpose(-1, -2) * 0.35, -1)
        x = m.first(x + m.out((weights @ parts[2]).transpose(1, 2).reshape(x.shape)))
        return m.second(x + m.down(functional.gelu(m.up(x))))

    linear, norm = nn.Linear, nn.LayerNorm
    return Function(
        layer, qkv=linear(width, 3 * width), out=linear(width, width), up=linear(width, 24),
        down=linear(24, width), first=norm(width), second=norm(width),
    )  # fmt: skip


def test_layers_of_bert_are_one_network_for_any_batch() -> None:
    given = [(torch.randn(*shape, 16),) for shape in ((3, 9), (5, 9), (2, 11))]
    for x in given:
        torch._dynamo.mark_dynamic(x[0], (0, 1))
    seen = check(nn.Sequential(bert(), bert()), *given)
    assert products(seen) == [[6, 6]]
    assert len({each.kernel for each in seen[0].networks}) == 1


def attention(**options: Any) -> Any:
    """Attention of the first 5 queries, with the layers around it; ``mask`` is one of booleans."""

    def layer(m: Any, x: Any, mask: Any = None) -> Any:
        q, k, v = (each(x).view(*x.shape[:2], 2, -1).transpose(1, 2) for each in (m.q, m.k, m.v))
        seen = {} if mask is None else {"attn_mask": mask > 0}
        y = functional.scaled_dot_product_attention(q[:, :, :5], k, v, **seen, **options)
        return m.out(y.transpose(1, 2).flatten(2))

    return Function(layer, **{name: nn.Linear(16, 16) for name in ("q", "k", "v", "out")})


def gated() -> Any:
    def layer(m: Any, x: Any) -> Any:
        return m.down(functional.silu(m.gate(x)) * m.up(m.norm(x)))

    return Function(
        layer, gate=nn.Linear(16, 24), up=nn.Linear(16, 24), down=nn.Linear(24, 16),
        norm=nn.RMSNorm(16),
    )  # fmt: skip


LOW: dict[str, tuple[Any, Any, int]] = {
    "layer": (bert, torch.bfloat16, 6),
    "heads": (lambda: nn.MultiheadAttention(16, 2, batch_first=True), torch.bfloat16, 4),
    "causal": (lambda: attention(is_causal=True), torch.bfloat16, 6),
    "gated": (gated, torch.float16, 3),
    "autocast": (bert, None, 6),
}


@pytest.mark.parametrize("name", LOW)
def test_low_precision_is_as_near_to_float64_as_pytorch(name: str) -> None:
    """Values are rounded where PyTorch rounds them; any batch is the same network."""
    make, type_, count = LOW[name]
    model, seen = make().eval(), list[Any]()
    model = model if type_ is None else model.to(type_)
    times = 3 if isinstance(model, nn.MultiheadAttention) else 1
    exact, ours = copy.deepcopy(model).double(), compiled(model, seen)
    errors: list[list[Any]] = [[], []]
    for batch in (4, 7):
        x = torch.randn(batch, 9, 16).to(type_ or torch.float32)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            right = listed(exact(*[x.double()] * times))[0]
            with torch.autocast("cpu", torch.bfloat16, enabled=type_ is None):
                both = [listed(one(*[x] * times))[0] for one in (ours, model)]
        assert both[0].dtype == both[1].dtype and both[0].shape == right.shape
        for found, one in zip(errors, both, strict=True):
            found.append((one.double() - right).flatten())
    assert products(seen) == [[count]]
    ours_off, theirs_off = (torch.cat(found).square().mean().sqrt() for found in errors)
    assert ours_off <= 1.15 * theirs_off


def test_a_changed_weight_is_seen_in_autocast() -> None:
    """PyTorch computes that call, with the conversions that autocast makes."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()
    x, ours = torch.randn(5, 8), compiled(model)
    for _ in range(3):
        # PyTorch itself keeps converted weights until autocast ends.
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            found, wanted = ours(x), model(x)
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, atol=0.02, rtol=0.02)
        model[0].weight.data.mul_(-2)


def test_masks_and_causal_attention() -> None:
    """A query sees keys up to its own number, or those of the mask; one without keys has zeros."""
    x = torch.randn(2, 9, 16)
    assert products(check(attention(is_causal=True), (x,))) == [[6]]
    mask = torch.randn(5, 9)
    mask[2] = -1
    assert products(check(attention(), (x, mask))) == [[6]]


def test_a_network_has_the_threads_that_pytorch_has_at_the_call() -> None:
    """The weights that one thread has packed are those of several, and no bit differs."""
    seen: list[Any] = []
    model, x = bert(), torch.randn(2, 9, 16)
    usual = torch.get_num_threads()
    try:
        with torch.no_grad():
            torch.set_num_threads(1)
            ours = compiled(model, seen)
            one = ours(x)
            torch.set_num_threads(2)
            assert torch.equal(ours(x), one)
        both = [x.kernels for x in calls._joined.values() if {1, 2} <= x.kernels.keys()]
        assert both and all(kernels[n].schedule.threads == n for kernels in both for n in (1, 2))
    finally:
        torch.set_num_threads(usual)


def test_layers_of_pytorch_are_networks() -> None:
    encoder = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.1, batch_first=True)
    given = [(torch.randn(batch, 5, 16),) for batch in (2, 3)]
    for x in given:
        torch._dynamo.mark_dynamic(x[0], 0)
    assert products(check(encoder, *given)) == [[6]]
    mlp = nn.Sequential(
        nn.Linear(7, 20), nn.BatchNorm1d(20), nn.ReLU(inplace=True), nn.Linear(20, 9), nn.Softmax(1)
    )
    mlp[1].running_var.uniform_(0.5, 2)
    assert products(check(mlp, (torch.randn(6, 7),), (torch.randn(9, 7),))) == [[2], [2]]


def test_an_unknown_operator_stays_where_it_is() -> None:
    def function(m: Any, x: Any) -> Any:
        y = m.b(torch.relu(m.a(x)))
        return m.b(m.a(torch.cumsum(y, -1) + x)), y > 0

    model = Function(function, a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    seen = check(model, (torch.randn(5, 8),))
    assert products(seen) == [[2, 2]]
    assert [left.operator for left in seen[0].apart] == ["cumsum", "gt"]
    assert "not imported" in seen[0].apart[0].reason


def writes(m: Any, x: Any) -> Any:
    """Views of one tensor, writes between and after the layers, and results that share memory."""
    y = m.b(m.a(x))
    before = y.t().clone()
    y[0] = 3
    z = m.b(m.a(y))
    first = z.view(-1)
    z.add_(1)
    x.mul_(2)
    return before, y, z, first, m.b(m.a(x.t()))


def test_writes_are_seen_in_their_order() -> None:
    model = Function(writes, a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    assert products(check(model, (torch.randn(8, 8),))) == [[2, 2, 2]]


def test_results_keep_their_strides() -> None:
    def function(m: Any, x: Any) -> Any:
        y = m.b(m.a(x)).t() * 2
        return y.t().view(-1)

    model = Function(function, a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    assert products(check(model, (torch.randn(4, 8),))) == [[2]]


def test_results_that_share_memory_still_do() -> None:
    def function(m: Any, x: Any) -> Any:
        y = m.b(m.a(x))
        return y, y.t(), x.t()

    model = Function(function, a=nn.Linear(8, 8), b=nn.Linear(8, 8))
    x = torch.randn(4, 8)
    with torch.no_grad():
        y, turned, given = compiled(model)(x)
        y.zero_()
        x.zero_()
    assert not turned.any() and not given.any()


@pytest.mark.parametrize("kind", ["strides", "negated", "repeated"])
def test_inputs_of_any_strides(kind: str) -> None:
    x = {
        "strides": torch.randn(8, 10).t()[::2],
        "negated": torch.complex(torch.randn(5, 8), torch.randn(5, 8)).conj().imag,
        "repeated": torch.randn(1, 8).expand(5, 8),
    }[kind]
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x), atol=1e-5, rtol=1e-5)


def test_what_is_recorded_or_cast_is_left() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    x, seen = torch.randn(5, 8), list[Any]()
    compiled(model, seen)(x).sum().backward()

    def inside(m: Any, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m.layers(x)

    with torch.no_grad():
        compiled(Function(inside, layers=model), seen)(x)
    with torch.no_grad():
        compiled(model.double(), seen)(x.double())
    assert products(seen) == [[], [], []]
    reasons = [found.apart[0].reason for found in seen]
    assert reasons[:2] == ["gradients are recorded", "it begins torch.autocast"]
    model = model.float().requires_grad_(False)
    torch.testing.assert_close(compiled(model, seen)(x), model(x), atol=1e-5, rtol=1e-5)
    assert products(seen[-1:]) == [[2]]


def test_few_rows_are_left_to_single_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacing, "FEWEST", 6)
    seen = check(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), (torch.randn(5, 8),))
    assert products(seen) == [[]] and "fewer than 6 rows" in seen[0].apart[0].reason


def test_calls_of_several_threads() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)).eval()
    ours, wrong = compiled(model), []
    inputs = [torch.full((5, 8), float(number)) for number in range(4)]
    with torch.no_grad():
        ours(inputs[0])
        expected = [model(x) for x in inputs]

    def several(number: int) -> None:
        with torch.no_grad():
            for _ in range(20):
                found = ours(inputs[number])
                if not torch.allclose(found, expected[number], atol=1e-5):
                    wrong.append(number)

    threads = [threading.Thread(target=several, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_backend_takes_networks_and_says_so(
    capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(m: Any, x: Any) -> Any:
        return torch.cumsum(m.b(torch.tanh(m.a(x))), -1)  # Inductor computes the sum

    model = Function(function, a=nn.Linear(8, 8), b=nn.Linear(8, 8)).eval()
    torch._dynamo.reset()
    x, ours = torch.randn(5, 8), torch.compile(model, backend="tilewright")
    packings, pack = list[int](), calls._pack

    def counted(*given: Any) -> Any:
        packings.append(1)
        return pack(*given)

    monkeypatch.setattr(calls, "_pack", counted)
    with torch.no_grad():
        for repeats in (3, 3):
            for _ in range(repeats):
                torch.testing.assert_close(ours(x), model(x), atol=1e-5, rtol=1e-5)
            model.a.weight.data.mul_(2)
    assert len(packings) == 2, "once for each weight"
    tt.summary(tt.history[-1:])
    said = capsys.readouterr().out
    assert "networks: 1, with 2 products" in said and "in no network: 1\n  1 x cumsum" in said


def test_networks_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels then compute the whole graph: Inductor does not run."""
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", None)
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.ones(5, 8)
    ours = torch.compile(model, backend="tilewright", options={"networks": False})
    with torch.no_grad():
        torch.testing.assert_close(ours(x), model(x))
    assert tt.history[-1] == tt.Served(layers=2, activations=0, products=0)


def test_each_byte_and_each_place_change_a_digest() -> None:
    given = torch.randn(CHUNK // 2)
    seen = {digest([given]), digest([given[1:], given[:1]]), digest([given[:-1]])}
    for place in (0, 63, 1000, CHUNK // 4, CHUNK // 2 - 1):
        given.data[place] += 1
        seen.add(digest([given]))
    seen.add(digest([given.flip(0)]))
    assert len(seen) == 9
    assert digest([given], "scalar") == digest([given])
    assert digest([given.view(64, -1).t()]) == digest([given.view(64, -1).t().contiguous()])
