"""Random networks between guard pages, natively: tensors, weights, results and scratch memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.cases import Cases
from support.products.trial import Flush, lab

import tilewright as tw
from tilewright.generate import Request, generate
from tilewright.runtime.call.argument_checks import check
from tilewright.runtime.call.packed_matrix import PackedMatrix
from tilewright.runtime.emulate.calls import call
from tilewright.runtime.fuzz.networks import draw_network
from tilewright.runtime.reference.verify import cases_of

NETWORKS = 12
ENDS: tuple[Flush, ...] = ("rear", "front")


class Guarded:
    """A kernel whose calls run in another process, where one end of each array is guarded."""

    def __init__(self, net: Any, name: str, runner: Any, flush: Flush) -> None:
        self.name, self.net = name, net
        self.spec, self.isa, self.signature = net.spec, net.isa, net.signature
        self.runner: Any = SimpleNamespace(call=partial(runner.call, flush=flush))

    def packed(self, name: str, matrix: Any) -> PackedMatrix:
        found: PackedMatrix = self.net.packed(name, matrix)
        return found

    def frame(self, *arrays: Any, **named: Any) -> Any:
        return self.net.frame(*arrays, **named)

    def __call__(self, **named: Any) -> None:
        arrays = [named[each.name] for each in self.signature.arrays]
        call(self.runner, self.name, self.signature, check(self.signature, arrays), ())


def layers() -> tw.Network:
    """Two layers, whose blocks of rows have heights that the call computes."""
    weights = {"a": tw.Tensor("f32", (9, 40)), "b": tw.Tensor("f32", (40, 5))}
    x = tw.Tensor("f32", (tw.dim("rows"), 9))
    return tw.network(lambda x, w: tw.relu(x @ w.a) @ w.b).of(x=x, w=weights)


def test_random_networks_keep_to_their_memory(
    tmp_path: Path, pytestconfig: pytest.Config, cases: Cases
) -> None:
    drawn = [draw_network(pytestconfig.option.seed, 10_000 + n) for n in range(NETWORKS)]
    asked = [(case.spec(), tw.Schedule(threads=2 - n % 2)) for n, case in enumerate(drawn)]
    asked.append((layers(), tw.Stages(tw.Stage("a b", rows=12), threads=3)))
    nets = tw.compile_many([(spec, schedule, "host") for spec, schedule in asked])
    names = [f"net{number}" for number in range(len(asked))]
    isa = nets[0].isa
    requests = [Request(name, *each, isa) for name, each in zip(names, asked, strict=True)]
    found = lab([generate(requests).text], names, isa, tmp_path)
    assert found.means == "native"
    for name, net in zip(names, nets, strict=True):
        for one in cases_of(net, 2, int(name.removeprefix("net"))):
            for flush in ENDS:
                one.run(Guarded(net, name, found.runner, flush))
                cases.count("host", "native", 1)
