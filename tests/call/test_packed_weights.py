"""Packed weights of networks: files, mapped files, torch tensors, and what is refused."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import nn
from tilewright.runtime.network_kernel import NetworkKernel

ROWS = tw.dim("rows")
START = struct.Struct("<16sII")


def two(x: Any, w: Any) -> Any:
    return nn.linear(tw.relu(nn.linear(x, w.a, w.b)), w.c)


def weights() -> dict[str, Any]:
    rng = np.random.default_rng(5)
    shapes = {"a": (24, 40), "b": (40,), "c": (40, 9)}
    return {name: np.float32(rng.standard_normal(shape)) for name, shape in shapes.items()}


def network(given: dict[str, Any]) -> NetworkKernel:
    found = tw.compile(tw.network(two).of(x=tw.Tensor("f32", (ROWS, 24)), w=given))
    assert isinstance(found, NetworkKernel)
    return found


@pytest.mark.parametrize("mapped", [False, True])
def test_weights_are_saved_loaded_and_mapped(tmp_path: Path, mapped: bool) -> None:
    given = weights()
    net, x = network(given), np.ones((3, 24), np.float32)
    packed = net.pack(given)
    packed.save(tmp_path / "w")
    packed.save(tmp_path / "w")
    assert [each.name for each in tmp_path.iterdir()] == ["w"]
    loaded = tw.PackedWeights.load(tmp_path / "w", mapped=mapped)
    assert (loaded.names, loaded.nbytes) == (packed.names, packed.nbytes)
    np.testing.assert_array_equal(net(x, loaded), net(x, packed))
    with pytest.raises(ValueError, match="read-only"):
        loaded.arrays[1][0] = 1


def _edited(change: Callable[[Any], None]) -> Callable[[bytes], bytes]:
    """Return a function that changes the header of a file, and keeps its length."""

    def edited(data: bytes) -> bytes:
        magic, version, length = START.unpack(data[: START.size])
        header = json.loads(data[START.size : START.size + length])
        change(header)
        text = json.dumps(header).encode()
        text += b" " * (-(START.size + len(text)) % 64)
        return START.pack(magic, version, len(text)) + text + data[START.size + length :]

    return edited


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d[:10], "no packed weights"),
        (lambda d: d[:-64], "another length"),
        (lambda d: d + bytes(64), "another length"),
        (lambda d: START.pack(d[:16], 9, 40) + d[24:], "another version"),
        (lambda d: START.pack(d[:16], 1, 1 << 30) + d[24:], "too long a header"),
        (lambda d: d[:24] + b"[" + d[25:], "damaged header"),
        (_edited(lambda h: h["weights"][0].update(shape=[40, 24])), "not its format's"),
        (_edited(lambda h: h["weights"][0].update(format="f32 mine")), "unknown format"),
        (_edited(lambda h: h["weights"][1].update(shape=[41])), "another number of bytes"),
        (_edited(lambda h: h["weights"][1].update(shape=[-1])), "damaged header"),
        (_edited(lambda h: h["weights"][1].update(nbytes=1 << 70)), "damaged header"),
        (_edited(lambda h: h.update(weights=7)), "damaged header"),
        (_edited(lambda h: h["weights"].pop()), "another length"),
    ],
)
def test_hostile_files_are_refused(
    tmp_path: Path, change: Callable[[bytes], bytes], says: str, mapped: bool
) -> None:
    given = weights()
    path = tmp_path / "w"
    network(given).pack(given).save(path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(tw.ArgumentError, match=says):
        tw.PackedWeights.load(path, mapped=mapped)


def test_damaged_weights_are_seen(tmp_path: Path) -> None:
    given, path = weights(), tmp_path / "w"
    network(given).pack(given).save(path)
    data = bytearray(path.read_bytes())
    data[-70] ^= 1
    path.write_bytes(data)
    with pytest.raises(tw.ArgumentError, match="checksum"):
        tw.PackedWeights.load(path)


def test_tensors_of_torch_are_weights_and_arguments() -> None:
    torch = pytest.importorskip("torch")
    given = weights()
    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    net = network(tensors)
    packed = net.pack({**tensors, "a": torch.nn.Parameter(tensors["a"].T.contiguous()).T})
    x = torch.ones(5, 24)
    found = net(x, packed)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), network(given)(x.numpy(), net.pack(given)))


def test_nan_in_weights_is_refused() -> None:
    given = weights()
    given["b"][3] = np.nan
    with pytest.raises(tw.ArgumentError, match=r"w\.b holds NaN"):
        network(given).pack(given)


def test_threads_change_no_bit() -> None:
    given = weights()
    one = network(given)
    two = tw.compile(one.spec, tw.Schedule(threads=2))
    assert "run_parallel(" in two.source and two.schedule == tw.Schedule(threads=2)
    x = np.float32(np.random.default_rng(7).standard_normal((600, 24)))
    packed = one.pack(given)
    np.testing.assert_array_equal(two(x, packed), one(x, packed))


def test_calls_from_several_threads_have_memory_of_their_own() -> None:
    given = weights()
    net = network(given)
    packed = net.pack(given)
    rng = np.random.default_rng(6)
    inputs = [np.float32(rng.standard_normal((rows, 24))) for rows in (700, 33, 512, 1)]
    right = [net(x, packed) for x in inputs]
    wrong: list[int] = []
    begin = threading.Barrier(len(inputs))

    def run(number: int) -> None:
        bound = net.bind(inputs[number], packed)
        begin.wait()
        for _ in range(50):
            bound()
            called = net(inputs[number], packed)
            if any((found != right[number]).any() for found in (called, vars(bound)["out"])):
                wrong.append(number)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(len(inputs))]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert not wrong
