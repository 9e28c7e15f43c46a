"""Weights that a library ships: files that C maps, hostile ones refused; weights compiled in."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.library.weights import shipped
from tilewright.runtime.machine.host import machine, resolve
from tilewright.spec.dtypes import DTYPES

pytestmark = pytest.mark.xdist_group("files of weights")
RNG = np.random.default_rng(3)
FORM = tw.Quantized("u4", scale="f16", zero=8, block=16)
WEIGHTS = {
    "q": tw.quantize(RNG.standard_normal((32, 5)).astype("f4"), FORM),
    "b": RNG.standard_normal(5).astype("f4"),
    "c": RNG.standard_normal(5).astype("f4"),
}
X = np.float32(np.arange(64) % 7).reshape(2, 32)


def layer(x: Any, w: Any) -> Any:
    return tw.relu(x) @ w.q + (w.b - w.c)


def made(function: Callable[..., Any]) -> tw.Network:
    return tw.network(function).of(x=tw.Tensor("f32", (tw.dim("rows"), 32)), w=WEIGHTS)


SPEC, OTHER = made(layer), made(lambda x, w: x @ w.q + (w.c - w.b))
HOST = resolve("host").name
PROGRAM = """
#include <net.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words)
{
    static float x[64], out[10];
    for (int i = 0; i < 64; i++)
        x[i] = (float)(i % 7);
    net_use(words[1]);
    printf("%s\\n", net_layer_file());
    for (int i = 2; i < count; i++) {
        struct net_weights weights;
        const int status = net_layer_open(words[i], &weights);
        if (status) {
            printf("%s%s\\n", net_status_text(status), weights.packed ? "!" : "");
        } else {
            const int64_t bytes = net_layer_scratch_bytes(2) / 64 * 64 + 64;
            void *const scratch = aligned_alloc(64, (size_t)bytes);
            net_layer_with(x, weights.packed, out, 2, scratch);
            printf("%s %.9g\\n", net_status_text(net_layer_check(&weights)), out[9]);
            free(scratch);
        }
        net_close(&weights);
        net_close(&weights);
    }
    return 0;
}
"""
FINE, DAMAGED, NO_WEIGHTS = (
    "kernels can be called",
    "the file of weights is damaged",
    "has no packed",
)
OTHER_NETWORK, OTHER_TARGET = "of another network", "for another target"


def _header(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return a function that changes a file's header, and keeps its length a multiple of 64."""

    def changed(data: bytes) -> bytes:
        length = struct.unpack_from("<I", data, 20)[0]
        text = change(data[24 : 24 + length].rstrip())
        text += b" " * (-(24 + len(text)) % 64)
        return data[:20] + struct.pack("<I", len(text)) + text + data[24 + length :]

    return changed


HOSTILE: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda d: b"", NO_WEIGHTS),
    (lambda d: d[:63], NO_WEIGHTS),
    (lambda d: b"T" + d[1:], NO_WEIGHTS),
    (lambda d: d[:16] + b"\2" + d[17:], NO_WEIGHTS),
    (lambda d: d[:64], DAMAGED),
    (lambda d: d[:-64], DAMAGED),
    (lambda d: d + bytes(64), DAMAGED),
    (lambda d: d[:20] + b"\xff\xff\xff\xff" + d[24:], DAMAGED),
    (lambda d: d[:20] + bytes(4) + d[24:], OTHER_NETWORK),
    (_header(lambda t: t.replace(b"[32, 5]", b"[5, 32]")), OTHER_NETWORK),
    (_header(lambda t: t.replace(b"w.b - w.c", b"w.c - w.b")), OTHER_NETWORK),
    (_header(lambda t: t[:-1]), DAMAGED),
    (_header(lambda t: t + b"}"), DAMAGED),
    (_header(lambda t: t[: t.rindex(b" ")] + b" 99999999999}"), DAMAGED),
    (_header(lambda t: t[: t.rindex(b" ")] + b" 4294967296}"), DAMAGED),
    (_header(lambda t: t[: t.rindex(b" ")] + b" -1}"), DAMAGED),
    (lambda d: d[:-1] + bytes([d[-1] ^ 1]), FINE),  # padding, which no checksum covers
    (lambda d: d[:-50] + bytes([d[-50] ^ 1]) + d[-49:], DAMAGED),
]


@pytest.mark.parametrize("mapped", [True, False])
def test_a_c_program_maps_the_files_of_a_library(
    tmp_path: Path, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilewright.runtime.library.weights.MOST", 0)
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    targets = [HOST, "scalar"] if mapped else ["scalar"]
    library = tw.library(
        "net", {"layer": SPEC}, targets=targets, weights={"layer": WEIGHTS}, jobs=1
    )
    folder = tmp_path / "net"
    if mapped:
        (built,) = library.build(folder, architectures=[machine()], selftest=False)
        parts = [str(built.static)]
    else:
        library.write(folder)
        parts = [str(path) for path in folder.glob("src/**/*.c")] + ["-DNET_NO_MMAP"]
    (tmp_path / "main.c").write_text(PROGRAM)
    strict = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-ffp-contract=off"]
    command = ["gcc", *strict, f"-I{folder}/include", "main.c", *parts, "-lm", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)

    paths, says = ["absent", str(tmp_path)], ["cannot be opened", "no packed" if mapped else ""]
    scalar = (folder / "weights" / "scalar_layer.weights").read_bytes()
    for number, (change, told) in enumerate(HOSTILE):
        (tmp_path / str(number)).write_bytes(change(scalar))
        paths, says = [*paths, str(number)], [*says, told]
    tw.compile(OTHER, target="scalar").pack(WEIGHTS).save(tmp_path / "other")
    paths, says = [*paths, "other"], [*says, OTHER_NETWORK]
    for target in targets:
        net: Any = tw.compile(SPEC, target=target)
        packed = net.pack(WEIGHTS)
        path = f"{target.replace('+', '_').replace('.', '_')}_layer.weights"
        packed.save(tmp_path / "saved")
        assert (folder / "weights" / path).read_bytes() == (tmp_path / "saved").read_bytes()
        right = f"{FINE} {net(X, packed)[1, 4]:.9g}"
        lines = ran(tmp_path, target, str(folder / "weights" / path), "saved")
        assert lines == [path, right, right]
    lines = ran(tmp_path, "scalar", *paths)[1:]
    assert len(lines) == len(says)
    for line, told in zip(lines, says, strict=True):
        assert told in line and "!" not in line
    if mapped:
        assert OTHER_TARGET in ran(tmp_path, HOST, str(folder / "weights/scalar_layer.weights"))[1]


def ran(folder: Path, *words: str) -> list[str]:
    done = subprocess.run(
        ["./main", *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def test_large_weights_are_files_and_small_ones_are_compiled_in(tmp_path: Path) -> None:
    layers = tw.network(lambda x, w: x @ w.up)
    given = {n: {"up": np.ones((n, 512), np.float32)} for n in (1, 513)}
    specs = {f"net{n}": layers.of(x=tw.Tensor("f32", (1, n)), w=w) for n, w in given.items()}
    library = tw.library(
        "lib", specs, targets=["avx2", "neon", "scalar"], jobs=1,
        weights={f"net{n}": w for n, w in given.items()},
    )  # fmt: skip
    assert "src/lib_weights.h" in library.files and "lib_net1_with" not in library.files["lib.map"]
    assert set(library.weights) == {"weights/avx2_net513.weights"}  # all targets share one format
    folder = library.write(tmp_path / "lib")
    assert library.write(folder) == folder
    loaded = tw.PackedWeights.load(folder / "weights" / "avx2_net513.weights")
    assert loaded.names == ("w.up",)
    (folder / "weights" / "avx2_net513.weights").write_bytes(b"")
    with pytest.raises(tw.ArgumentError, match=r"avx2_net513\.weights \(edited\)"):
        library.write(folder)
    assert "install(FILES weights/avx2_net513.weights" in library.files["CMakeLists.txt"]


#: Kernels with low-bit weights: zero points, minima, blocks of several columns.
LOW: dict[str, tuple[Any, tw.Quantized]] = {
    "own": ("bf16", tw.Quantized("s4", scale="f32", zero="s4")),
    "minima": ("f16", tw.Quantized("u2", scale="f16", zero="f16", block=16)),
    "wide": ("f32", tw.Quantized("f4_e2m1", scale="e8m0", block=(32, 4))),
}
IN_C = """
#include <low.h>
#include <stdio.h>
#include <stdlib.h>

void *scratch(int64_t bytes);
void *scratch(int64_t bytes)
{
    return aligned_alloc(64, (size_t)(bytes / 64 * 64 + 64));
}

int main(int count, char **words)
{
    static uint32_t x[2 * 64], out[2 * 9];
    (void)count;
    low_use(words[1]);
"""
CALL = """
    if (fread(x, {size}, 2 * 64, stdin) != 2 * 64)
        return 1;
    low_{name}((const void *)x, (void *)out, 2{scratch});
    fwrite(out, {out}, 2 * 9, stdout);
"""


def test_low_bit_weights_are_compiled_in(tmp_path: Path) -> None:
    """A C program without files has the bits of Python, on the host's target and in plain C."""
    if shutil.which("gcc") is None:
        pytest.skip("no gcc")
    specs, weights, rows = {}, {}, tw.dim("rows")
    for name, (type_, form) in LOW.items():
        given = {
            "q": tw.quantize(RNG.standard_normal((64, 9)).astype("f4"), form),
            "b": RNG.standard_normal(9).astype("f4"),
        }
        specs[name] = tw.network(lambda x, w: tw.relu(x @ w.q + w.b)).of(
            x=tw.Tensor(type_, (rows, 64)), w=given
        )
        weights[name] = given
    library = tw.library("low", specs, targets=[HOST, "scalar"], weights=weights, jobs=1)
    assert not library.weights and library.kernels == tuple(LOW)
    assert "low_own_open" not in library.files["low.map"]
    (built,) = library.build(tmp_path / "low", architectures=[machine()])
    assert built.passed, built.output

    numbers = RNG.standard_normal((2, 64)).astype("f4")
    arrays = {name: numbers.astype(DTYPES[type_]) for name, (type_, _) in LOW.items()}
    right: dict[str, list[Any]] = {}
    for target in library.targets:
        nets: list[Any] = tw.compile_many([(spec, None, target) for spec in specs.values()])
        right[target] = [
            net(arrays[name], net.pack(weights[name]))
            for net, name in zip(nets, specs, strict=True)
        ]
    calls = []
    for (name, x), result in zip(arrays.items(), right[HOST], strict=True):
        memory = f"low_{name}_scratch_bytes"
        scratch = f", scratch({memory}(2))" if memory in library.files["low.map"] else ""
        calls.append(CALL.format(name=name, size=x.itemsize, out=result.itemsize, scratch=scratch))
    (tmp_path / "main.c").write_text("".join([IN_C, *calls, "    return 0;\n}\n"]))
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}/low/include"]
    command += ["main.c", str(built.static), "-lm", "-pthread", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    for target in library.targets:
        got = subprocess.run(
            ["./main", target], cwd=tmp_path, check=True, capture_output=True,
            input=b"".join(x.tobytes() for x in arrays.values()),
        ).stdout  # fmt: skip
        assert got == b"".join(each.tobytes() for each in right[target])


def test_low_bit_elements_count_with_their_bits() -> None:
    """A byte has two elements of 4 bits; scales count too."""
    for k, inside in ((30 * 64, True), (31 * 64, False)):
        form = tw.Quantized("u4", scale="f16", zero=8, block=64)
        q, scales = np.zeros((k, 1024), np.uint8), np.ones((k // 64, 1024), np.float16)
        given = {"q": tw.QuantizedMatrix(form, q, scales)}
        spec = tw.network(lambda x, w: x @ w.q).of(x=tw.Tensor("f32", (1, k)), w=given)
        compiled, filed = shipped("net", spec, given)
        assert (list(compiled), len(filed)) == ((["w_q"], 0) if inside else ([], 1))
