"""A bank of 32 oriented filters over a photograph, as one batch-reduce kernel per row of pixels.

    python examples/oriented_filters.py [PICTURE.png]       (by default: filter-responses.png)

Each filter weighs 7 x 7 pixels of 3 colours:

    response[y, x, f] = sum over dy, dx, colour of image[y + dy, x + dx, colour] * filter[...]

Fix dy and dx, and a row of responses is a matrix product: its A, one line of 3 colours for each
pixel, is the image itself, read from pixel (y + dy, dx) on; its B is the 3 x 32 weights at
(dy, dx). The row is the sum of 49 such products: a batch-reduce GEMM whose A matrices are the
same memory at 49 offsets. Nothing is copied or rearranged, and the responses of a block of pixels
stay in registers until all 147 terms are in.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tilewright as tw

Array = NDArray[Any]

SIDE = 7
ORIENTATIONS = 8
COLOURS = 3
FILTERS = 4 * ORIENTATIONS  # two phases, two mixtures of colours


def photograph() -> Array:
    """The picture of a Chinese palace that scikit-learn carries: (427, 640, 3), f32 in 0 to 1."""
    from matplotlib.image import imread

    found = find_spec("sklearn")  # its file alone: importing it takes longer than all kernels do
    assert found is not None and found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0])
    pixels: Array = np.asarray(imread(folder / "datasets" / "images" / "china.jpg"))
    return pixels.astype(np.float32) / np.float32(255)


def filter_bank() -> Array:
    """Weights of shape (dy, dx, colour, filter), f32; every filter ignores an even surface.

    Gabor filters: a wave across one of 8 directions under a Gaussian, as an edge (odd phase) and
    as a line (even phase), once of brightness and once of red against blue. The filters' order
    is mixture, phase, direction.
    """
    y, x = np.mgrid[-3:4, -3:4].astype(np.float64)
    window = np.exp(-(x**2 + y**2) / (2 * 2.0**2))
    mixtures = np.array([[1, 1, 1], [1, 0, -1]]) / 3
    bank = []
    for mixture in mixtures:
        for wave in (np.sin, np.cos):
            for i in range(ORIENTATIONS):
                angle = np.pi * i / ORIENTATIONS
                across = x * np.cos(angle) + y * np.sin(angle)
                shape = window * wave(2 * np.pi * across / 6)
                shape -= window * shape.sum() / window.sum()
                bank.append(shape[:, :, None] / abs(shape).sum() * mixture)
    return np.stack(bank, axis=-1).astype(np.float32)


def compile_filter(width: int, target: str = "host") -> tw.Kernel:
    """The kernel for a row of responses to an image ``width`` pixels wide."""
    places = [(dy, dx) for dy in range(SIDE) for dx in range(SIDE)]
    batch = tw.Offsets(
        count=len(places),
        a=tuple((dy * width + dx) * COLOURS for dy, dx in places),
        b=tuple(i * COLOURS * FILTERS for i in range(len(places))),
    )
    return tw.compile(tw.Gemm(width - SIDE + 1, FILTERS, COLOURS, batch=batch), target=target)


def respond(kernel: tw.Kernel, image: Array, bank: Array) -> Array:
    """All responses, of shape (height - 6, width - 6, 32): one call of the kernel for each row."""
    height, width, _ = image.shape
    responses = np.empty((height - SIDE + 1, width - SIDE + 1, FILTERS), np.float32)
    pixels, weights = image.reshape(-1), bank.reshape(-1)
    for y, row in enumerate(responses):
        kernel(pixels[y * width * COLOURS :], weights, row)
    return responses


def respond_by_scipy(image: Array, bank: Array) -> Array:
    """The same in float64, one filter at a time."""
    from scipy.signal import correlate

    wide = image.astype(np.float64)
    each = [correlate(wide, bank[..., f], mode="valid")[..., 0] for f in range(FILTERS)]
    return np.stack(each, axis=-1)


def respond_by_numpy(image: Array, bank: Array) -> Array:
    """The same as one large product of a matrix that holds each pixel's surroundings, copied."""
    views = np.lib.stride_tricks.sliding_window_view(image, (SIDE, SIDE), axis=(0, 1))
    around = views.transpose(0, 1, 3, 4, 2).reshape(-1, SIDE * SIDE * COLOURS)
    shape = (*views.shape[:2], FILTERS)
    product: Array = around @ bank.reshape(-1, FILTERS)
    return product.reshape(shape)


def timed(runs: int, function: Callable[..., Array], *arguments: object) -> tuple[Array, float]:
    """What a function returns, and the seconds of the best of some runs."""
    best = float("inf")
    for _ in range(runs):
        start = time.perf_counter()
        result = function(*arguments)
        best = min(best, time.perf_counter() - start)
    return result, best


def paint(path: str, image: Array, bank: Array, responses: Array) -> None:
    """Save the photograph, its edges with the direction as hue, and all 32 responses."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import colors, pyplot

    figure = pyplot.figure(figsize=(20, 13.6), layout="constrained")
    top, bottom = figure.subfigures(2, 1)
    left, right = top.subplots(1, 2)
    left.imshow(image)
    left.set_title("the photograph")
    right.imshow(colors.hsv_to_rgb(directions(responses)))
    right.set_title("edges and lines: the direction of the strongest as hue")
    for f, axes in enumerate(bottom.subplots(4, ORIENTATIONS).flat):
        limit = np.percentile(abs(responses[..., f]), 99)
        axes.imshow(responses[..., f], cmap="RdBu", vmin=-limit, vmax=limit)
        weights = axes.inset_axes((0, 0.6, 0.26, 0.4))
        weights.imshow(0.5 + bank[..., f] / (2 * abs(bank[..., f]).max()))
        for shown in (axes, weights):
            shown.set_xticks([])
            shown.set_yticks([])
    for axes in (left, right):
        axes.set_axis_off()
    figure.savefig(path, dpi=100, pil_kwargs={"compress_level": 1})
    pyplot.close(figure)


def directions(responses: Array) -> Array:
    """Hue, saturation and value per pixel: the strongest direction of brightness, how strongly."""
    edges, lines = responses[..., :ORIENTATIONS], responses[..., ORIENTATIONS : 2 * ORIENTATIONS]
    energy = np.hypot(edges, lines)
    strength = energy.max(axis=-1)
    hue = energy.argmax(axis=-1) / ORIENTATIONS
    value = np.clip(strength / np.percentile(strength, 99), 0, 1)
    return np.stack([hue, np.full_like(hue, 0.8), value], axis=-1)


def main(picture: str, checked: int | None = None) -> int:
    """Filter the photograph, check against scipy, say how fast it was, and save the picture.

    With ``checked`` only so many rows of pixels are checked, and scipy, which takes seconds for
    all, is not timed.
    """
    image, bank = photograph(), filter_bank()
    height, width, _ = image.shape
    kernel = compile_filter(width)
    responses, ours = timed(20, respond, kernel, image, bank)
    _, numpys = timed(2, respond_by_numpy, image, bank)
    exact, scipys = timed(1, respond_by_scipy, image[:checked], bank)

    error = abs(responses[: len(exact)] - exact).max()
    terms = SIDE * SIDE * COLOURS
    # Pixels are at most 1, and the absolute weights of a filter sum to at most 1.
    bound = (terms + 4) * np.finfo(np.float32).eps
    flops = 2 * terms * responses.size
    print(f"{FILTERS} filters of {SIDE}x{SIDE}x{COLOURS} over {width}x{height} pixels: {kernel}")
    print(f"largest error {error:.2g}, at most {bound:.2g} by rounding")
    found = [("tilewright", ours), ("numpy, one product", numpys)]
    if checked is None:
        found.append(("scipy, by transforms", scipys))
    for name, seconds in found:
        print(f"{name:22}{1e3 * seconds:9.1f} ms {flops / seconds / 1e9:9.1f} GFLOPS")
    paint(picture, image, bank, responses)
    print(f"the responses: {picture}")
    return 0 if error <= bound else 1


if __name__ == "__main__":
    sys.exit(main((sys.argv[1:] or ["filter-responses.png"])[0]))
