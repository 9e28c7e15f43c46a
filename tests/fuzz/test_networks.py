"""Random networks whose rows do not depend on each other, and networks once found wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw
from tilewright import nn
from tilewright.cli.code import spec_of_code
from tilewright.generate import plan_for
from tilewright.plan.routines.network import stages_to_try
from tilewright.runtime.fuzz.networks import NetworkCase, draw_network
from tilewright.runtime.machine.host import resolve
from tilewright.runtime.reference.arguments import sample
from tilewright.spec.sizes import Dim

B, R, C = tw.dim("batch"), tw.dim("rows"), tw.dim("cols")
NETWORKS, MOST, FEW = 10, 33, (0, 1, 2, 7)


def t(*shape: Any, type: Any = "f32") -> tw.Tensor:
    return tw.Tensor(type, shape)


def same_twice(x: Any) -> Any:
    h = nn.max(x, axis=-2)
    return h, h, nn.concat((h, h), axis=0)


def joined_of_nothing(x: Any) -> Any:
    h = nn.concat((x, x), axis=2)
    return nn.rms_norm(nn.concat((h, nn.rms_norm(h)), axis=0)), h


def rounded(x: Any, w: Any) -> Any:
    h = nn.max(x, keepdims=True)
    return nn.product((h - nn.max(h, keepdims=True)).astype("u8"), w.a, a_zero=3) * 0.5


def softmax_of(h: Any) -> Any:
    powers = tw.exp(h - nn.max(h, axis=-2, keepdims=True))
    return powers / nn.sum(powers, axis=-2, keepdims=True)


#: Networks that were refused, did not compile, or had wrong results.
FOUND: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "a reduction that is two results, and joined": (same_twice, {"x": t(3, R, C)}),
    "values of rows added as those of columns": (
        lambda x: tw.exp(nn.sum(x) * 0.1) + x, {"x": t(4, 4)}
    ),
    "results of several shapes": (
        lambda x, y: (nn.softmax(x), y * 2, nn.max(y, axis=0)), {"x": t(R, C), "y": t(5, 7)}
    ),
    "a result that all rows share": (
        lambda x, y: (nn.softmax(x) + y, nn.max(y + 1)), {"x": t(R, 4), "y": t(1, 4)}
    ),
    "a maximum of one value with itself": (
        lambda x: tw.maximum(x, x).reshape((16, 1)) - 1, {"x": t(1, 16, type="f64")}
    ),
    "parts that are all empty": (joined_of_nothing, {"x": t(0, R, 17)}),
    "sums over no rows": (
        lambda x, w: nn.sum(x + w.b, axis=-3, keepdims=True), {"x": t(0, R, 17), "w": {"b": t(17)}}
    ),
    "an empty tensor in other shapes": (
        lambda x: (x[0], tw.relu(x).reshape((5, 0)), x.reshape((1, 0, 3, 1))), {"x": t(1, 0, 3)}
    ),
    "rows of a table without columns": (
        lambda x, i: nn.concat((nn.take(x[:, :0], i), nn.take(x, i)), axis=1),
        {"x": t(4, 5), "i": t(B, type="s32")},
    ),
    "rows of a table, transposed": (
        lambda x, i: nn.take(x, i).transpose((1, 0, 2)) * 2,
        {"x": t(5, 4, C), "i": t(3, type="s32")},
    ),
    "rows of a joined tensor that are replaced": (
        lambda x, i, y: nn.scatter(nn.concat((x, x * 2)), i, y)[1:],
        {"x": t(3, C), "i": t(B, type="s32"), "y": t(B, C, type="f16")},
    ),
    "rows added to rows without columns": (
        nn.scatter_add,
        {"base": t(5, 0), "index": t(B, type="s32"), "rows": t(B, 0)},
    ),
    "values without rows, transposed, in a product": (
        lambda x, y: x[:, :, :0].transpose((0, 2, 1)) @ y, {"x": t(3, 2, 1), "y": t(3, 2, 32)}
    ),
    "sums of no columns": (
        lambda x: (nn.sum(x), nn.mean(x * 2, keepdims=True), x.sum()), {"x": t(R, 0)}
    ),
    "a product of no rows in another order": (
        lambda x, w: (x @ w.a).transpose((1, 0, 2)), {"x": t(0, R, 48), "w": {"a": t(48, 7)}}
    ),
    "constants that are computed": (
        lambda x: (x + nn.full((2, 1), 3), nn.sum(nn.full((2, 3), 2) + 1), nn.full((1, 3), 2) * 2),
        {"x": t(2, 3)},
    ),
    "sums of values that vary along other axes only": (
        lambda x: softmax_of(nn.full((3, 9), 1.5) + x), {"x": t(1, 9)}
    ),
    "a softmax of constants": (lambda x: (softmax_of(nn.full((3, 9), 1.5)), x), {"x": t(2, 3)}),
    "a value of a row, in a loop over columns": (
        rounded, {"x": t(1, C, type="bf16"), "w": {"a": t(1, 33, type="s8")}}
    ),
}  # fmt: skip


@pytest.mark.parametrize("target", ["host", "neon"])
def test_what_was_found_stays_right(target: str, cases: Cases) -> None:
    specs = [tw.network(function).of(**given) for function, given in FOUND.values()]
    nets = tw.compile_many(
        [(spec, tw.Schedule(threads=2 - number % 2), target) for number, spec in enumerate(specs)]
    )
    for name, net in zip(FOUND, nets, strict=True):
        assert net.verify(cases=2).cases == 2, name
    cases.count(target, "native" if nets[0].emulated is None else "qemu", 2 * len(nets))


def test_threads_share_an_attention_of_no_matrices() -> None:
    def function(x: Any) -> Any:
        scores = x.swapaxes(1, 2) @ x
        return nn.concat((scores, scores), axis=1) @ scores, nn.softmax(scores) @ scores

    spec = tw.network(function).of(x=t(0, R, 3))
    assert tw.compile(spec, tw.Schedule(threads=2)).verify(cases=2).cases == 2


def test_threads_do_not_share_a_single_column() -> None:
    spec = tw.network(lambda x: nn.sum(x * 2, axis=-2) + 1).of(x=t(2, 13, 1))
    assert tw.compile(spec, tw.Schedule(threads=2), "scalar").verify(cases=2).cases == 2


def test_a_sum_of_no_columns_is_written() -> None:
    def function(x: Any) -> Any:
        h = nn.sum(x, keepdims=True) + 2
        return h.transpose((0, 2, 1)) * nn.sum(h, axis=1, keepdims=True)

    net = tw.compile(tw.network(function).of(x=t(B, 3, C)))
    np.testing.assert_array_equal(net(np.ones((2, 3, 0), np.float32)), np.full((2, 1, 3), 12))


# -- rows apart -----------------------------------------------------------------------------------


def leads(shape: tuple[Any, ...], dim: Dim) -> bool:
    return bool(shape) and shape[0] == dim


def apart(seed: int) -> Iterator[tuple[NetworkCase, tw.Network, Dim]]:
    """Networks of which an index of the first axis depends on no other index of it."""
    for index in count():
        case = draw_network(seed, index)
        if not case.apart:
            continue
        spec = case.spec()
        (first, *_), results = spec.inputs[0].shape, spec.results
        if not isinstance(first, Dim) or first.name == "columns":
            continue
        if all(leads(result.tensor.shape, first) for result in results if result.tensor):
            yield case, spec, first


def together(spec: tw.Network, index: int) -> tw.Schedule:
    """Stages of a network that run together, if there are any, on one thread or two."""
    threads = 2 - index % 2
    if not spec.staged:
        return tw.Schedule(threads=threads)
    ways = [stages for _, stages in stages_to_try(spec, resolve("host"), threads)]
    return ways[-1 - index % 3] if len(ways) > 3 else ways[-1]


def test_rows_do_not_depend_on_each_other_nor_on_stages_and_threads(
    pytestconfig: pytest.Config, cases: Cases
) -> None:
    drawn = list(islice(apart(pytestconfig.option.seed), NETWORKS))
    asked = [
        (spec, schedule, "host")
        for place, (_, spec, _) in enumerate(drawn)
        for schedule in (None, together(spec, place))
    ]
    assert sum("rows=" in repr(schedule) for _, schedule, _ in asked) >= NETWORKS // 4
    kernels = tw.compile_many(asked)
    for place, (case, spec, dim) in enumerate(drawn):
        assert spec_of_code(repr(spec)) == spec
        one, two = kernels[2 * place : 2 * place + 2]
        whole = called(one, case, dim, MOST)
        for rows in (*FEW, MOST):
            for net in (one, two):
                for got, right in zip(called(net, case, dim, rows), whole, strict=True):
                    assert got.tobytes() == right[:rows].tobytes(), (rows, case.python("host"))
    cases.count("host", "native", NETWORKS * 2 * (len(FEW) + 1))


def called(net: Any, case: NetworkCase, dim: Dim, rows: int) -> list[Any]:
    """The results for the first ``rows`` indices of arguments that are the same in each call."""
    signature = net.signature
    slot = next(p.slot for p in signature.sizes if p.dim == dim)
    rng = np.random.default_rng(case.index)
    named = sample(signature, rng, varied=True, given={slot: MOST}).named(net)
    outputs = {p.name for p in signature.arrays if p.role != "in"}
    for p in signature.arrays:
        if leads(p.shape, dim):
            named[p.name] = named[p.name][:rows]
        if p.name in outputs:
            named[p.name] = np.zeros(named[p.name].shape, named[p.name].dtype)
    net(**named)
    return [named[name] for name in sorted(outputs)]


# -- what is refused ------------------------------------------------------------------------------


def often(function: Callable[[Any], Any], times: int) -> Callable[[Any], Any]:
    return lambda x: reduce(lambda y, _: function(y), range(times), x)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tw.network(lambda x, w: (x @ w.a, w.a)).of(x=t(2, 4), w={"a": t(4, 3)}),
         "it is no result"),
        (lambda: tw.network(often(lambda x: x + 1, 10_000)).of(x=t(R, 8)), "most 4000 operators"),
        (lambda: tw.compile(tw.network(often(tw.tanh, 2000)).of(x=t(R, 8))), "nested too deeply"),
        (lambda: tw.network(lambda x, y: x + y).of(x=t(R, 3), y=t(B, 3)), "do not fit together"),
    ],
)  # fmt: skip
def test_networks_that_are_refused(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(tw.TilewrightError, match=says):
        make()


def test_two_hundred_functions_within_each_other_are_planned() -> None:
    spec = tw.network(often(lambda x: 1 - x, 200)).of(x=t(R, 8))
    assert tw.compile(spec, target="scalar").verify(cases=1).cases == 1


def test_three_hundred_norms_in_a_row_are_planned() -> None:
    spec = tw.network(often(nn.softmax, 300)).of(x=t(R, 8))
    plan = plan_for(spec, tw.Schedule(), resolve("scalar"))
    assert len(plan.passes) == 601 and len(plan.held) == 599
