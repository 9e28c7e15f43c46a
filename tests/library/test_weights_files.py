"""Files of weights beside a library: a C program maps them; other and hostile files are refused."""

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
from tilewright.runtime.machine.host import machine, resolve

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
def test_a_c_program_maps_the_files_of_a_library(tmp_path: Path, mapped: bool) -> None:
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
