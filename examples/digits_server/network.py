"""A trained network as a library in C that has its weights compiled in.

    tilewright build examples/digits_server/network.py -o digits     (needs scikit-learn)

numpy trains 64 -> 64 -> 10 on the handwritten digits that scikit-learn carries. The library has
one function: shares of the ten classes for any number of images. README.md here goes on.
"""

from __future__ import annotations

from typing import Any

import tilewright as tw
from tilewright import nn
from tilewright.examples.digits import digits, train


@tw.network
def classes(pixels: Any, w: Any) -> Any:
    """Shares of the classes for images of 64 pixels in 0 to 1."""
    hidden = tw.relu(nn.linear(pixels, w.hidden, w.hidden_bias))
    return nn.softmax(nn.linear(hidden, w.digit, w.digit_bias))


images, labels, *_ = digits()
trained = train(images, labels)
weights = {
    "hidden": trained.w, "hidden_bias": trained.b, "digit": trained.v, "digit_bias": trained.c,
}  # fmt: skip
network = classes.of(pixels=tw.Tensor("f32", (tw.dim("images"), 64)), w=weights)
library = tw.library(
    "digits",
    {"classes": network},
    targets=["avx2", "neon", "scalar"],
    weights={"classes": weights},
    description="Recognizes handwritten digits",
)
