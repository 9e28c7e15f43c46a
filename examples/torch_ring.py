"""A small network in PyTorch: trained, compiled with tilewright's backend, and quantised.

    python examples/torch_ring.py [STEPS]           (by default: 200)

It is taught to tell points inside of a ring from those outside. Training runs on kernels whose
gradients are kernels; inference through ``torch.compile(backend="tilewright")``, and in 8-bit
integers.
"""

from __future__ import annotations

import sys
from typing import Any


def points(torch: Any, count: int, seed: int) -> tuple[Any, Any]:
    """Points of a square, and whether each lies in a ring around its middle."""
    x = torch.rand((count, 2), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    radius = x.square().sum(1).sqrt()
    return x, ((radius > 0.4) & (radius < 0.8)).float()


def network(torch: Any) -> Any:
    """Two layers with their activations in their kernels, and one without."""
    from tilewright.torch import Linear

    torch.manual_seed(0)
    first, second = Linear(2, 64, activation="tanh"), Linear(64, 64, activation="relu")
    return torch.nn.Sequential(first, second, Linear(64, 1))


def train(torch: Any, model: Any, steps: int) -> None:
    """Teach it by Adam."""
    x, inside = points(torch, 1024, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss_of = torch.nn.functional.binary_cross_entropy_with_logits
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model(x)[:, 0], inside).backward()
        optimizer.step()


def quantised(torch: Any, model: Any) -> Any:
    """The same network with its layers in 8-bit integers."""
    from tilewright.torch import QuantizedLinear

    return torch.nn.Sequential(*(QuantizedLinear.from_float(layer) for layer in model))


def accuracies(steps: int) -> dict[str, float]:
    """How often each form of the network is right on points that it has not seen."""
    import torch

    model = network(torch)
    train(torch, model, steps)
    x, inside = points(torch, 1000, seed=2)
    forms = {
        "layers": model,
        "torch.compile": torch.compile(model, backend="tilewright"),
        "8-bit integers": quantised(torch, model),
    }
    with torch.no_grad():
        found = {name: form(x)[:, 0] > 0 for name, form in forms.items()}
    return {name: float((said == (inside > 0)).float().mean()) for name, said in found.items()}


def main() -> int:
    """Train, and say how often each form is right: not zero if one is not."""
    found = accuracies(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
    for name, right in found.items():
        print(f"{name:16s} {100 * right:.1f}% right")
    return int(min(found.values()) < 0.9)


if __name__ == "__main__":
    sys.exit(main())
