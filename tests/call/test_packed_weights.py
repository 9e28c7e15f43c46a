"""Packed weights of networks: files, mapped files, torch tensors, and what is refused."""

from __future__ import annotations

import json
import resource
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


@pytest.mark.parametrize("kind", ["weights", "matrix"])
def test_a_file_that_cannot_be_written_whole_changes_nothing(tmp_path: Path, kind: str) -> None:
    given = weights()
    packed: Any = network(given).pack(given)
    if kind == "matrix":
        packed = tw.compile(tw.Gemm(3, 9, 40, b=tw.Packed("f32"))).pack_b(given["c"])
    with pytest.raises(tw.ArgumentError, match="cannot be replaced"):
        packed.save("/dev/null")
    with pytest.raises(FileNotFoundError, match=r"absent/w'$"):
        packed.save(tmp_path / "absent" / "w")
    old = tmp_path / "w"
    old.write_bytes(b"old")
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
    try:
        with pytest.raises(OSError, match=r"w'$"):
            packed.save(old)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"old"]


def test_packed_weights_are_passed_by_name() -> None:
    given = weights()
    net, x = network(given), np.ones((3, 24), np.float32)
    packed = net.pack(given)
    right = net(x, packed)
    for found in (net(x, packed=packed), net(packed=packed, x=x), net(packed, x=x)):
        np.testing.assert_array_equal(found, right)
    with pytest.raises(tw.ArgumentError, match="takes fewer tensors before its packed weights"):
        net(x, x, packed)


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
    assert "run_parallel(" in two.source and two.schedule.threads == 2
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
    shared = net.bind(inputs[0], packed)  # one call of it at a time has its own memory
    begin = threading.Barrier(len(inputs))

    def run(number: int) -> None:
        bound = net.bind(inputs[number], packed)
        begin.wait()
        for _ in range(50):
            bound(), shared()
            called = net(inputs[number], packed)
            if any((found != right[number]).any() for found in (called, vars(bound)["out"])):
                wrong.append(number)

    workers = [threading.Thread(target=run, args=(number,)) for number in range(len(inputs))]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert not wrong
    np.testing.assert_array_equal(vars(shared)["out"], right[0])


class Shared:
    """An array that is known by DLPack alone."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **how: Any) -> Any:
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_objects_with_dlpack_are_weights_inputs_and_outputs_also_in_a_session() -> None:
    given = weights()
    net, x, out = network(given), np.ones((4, 24), np.float32), np.zeros((4, 9), np.float32)
    packed = net.pack({name: Shared(array) for name, array in given.items()})
    right = net(x, net.pack(given))
    with net.session():
        net(Shared(x), packed, out=Shared(out))
        np.testing.assert_array_equal(out, right)
        np.testing.assert_array_equal(net(x, packed), right)
    assert (np.from_dlpack(net(Shared(x), packed)) == right).all()


def test_a_call_takes_many_arrays() -> None:
    many = {f"b{number}": np.array([number, -1, 0.5], "f4") for number in range(70)}

    def added(x: Any, w: Any) -> Any:
        for name in many:
            x = tw.relu(x) + w[name]
        return x

    net = tw.compile(tw.network(added).of(x=tw.Tensor("f32", (ROWS, 3)), w=many))
    wanted = np.zeros((2, 3))
    for array in many.values():
        wanted = np.maximum(wanted, 0) + array
    np.testing.assert_array_equal(net(np.zeros((2, 3), np.float32), net.pack(many)), wanted)
    many |= {f"b{number}": np.zeros(3, "f4") for number in range(1100)}
    spec = tw.network(added).of(x=tw.Tensor("f32", (ROWS, 3)), w=many)
    with pytest.raises(tw.SpecError, match="at most 1024"):
        tw.compile(spec)


def _tied(factor: float) -> Callable[[Any, Any], Any]:
    def tied(x: Any, w: Any) -> Any:
        h = nn.linear(x, w.up.T, w.b + w.b) * (w.g * factor)
        return h @ w.up + w.rows.T[0] + tw.relu(x) @ (w.up * w.g[:, None]).T @ w.up

    return tied


def test_expressions_of_weights_alone_are_computed_by_pack(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    shapes = {"up": (11, 6), "b": (11,), "g": (11,), "rows": (6, 2)}
    w = {name: np.float32(rng.standard_normal(shape)) for name, shape in shapes.items()}
    spec = tw.network(_tied(0.125)).of(x=tw.Tensor("f32", (ROWS, 6)), w=w)
    net: Any = tw.compile(spec)
    assert [each.plan.spec.b.type for each in net.plan.products] == ["f32"] * 4
    assert "constant  w.g_folded = w.g * 0.125, computed by pack" in net.explain()
    x = np.float32(rng.standard_normal((5, 6)))
    packed = net.pack(w)
    up, b, g, rows, wide = (np.asarray(a, np.float64) for a in (*w.values(), x))
    scaled = (up * g[:, None]).astype(np.float32).astype(np.float64)
    right = ((wide @ up.T + 2 * b) * g * 0.125) @ up + rows[:, 0]
    np.testing.assert_allclose(
        net(x, packed), right + np.maximum(wide, 0) @ scaled.T @ up, 1e-4, 1e-4
    )
    assert net.verify(cases=2).cases == 2
    packed.save(tmp_path / "w")
    other: Any = tw.compile(tw.network(_tied(0.25)).of(x=tw.Tensor("f32", (ROWS, 6)), w=w))
    with pytest.raises(tw.ArgumentError, match="another network"):
        other(x, tw.PackedWeights.load(tmp_path / "w"))
