"""ONNX's own cases of single nodes, imported and compared: which pass, and why others do not.

``PYTHONPATH=tests python -m support.onnx_cases`` prints how many pass by the reference, and the
reasons of all others; with ``--compile``, how many pass as kernels.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

import tilewright as tw
import tilewright.onnx
from tilewright.errors import SpecError, TilewrightError
from tilewright.runtime.arrays.elements import nearest
from tilewright.runtime.imported import Model
from tilewright.runtime.reference.network import expected_of

#: Types of arrays that are passed as others.
_OTHERS = (np.int64, np.uint32, np.uint64, np.bool_)
#: Types that no input of a network has.
_WHOLE = {onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL}
#: The relative distance of neighbours in types of 16 bits: the reference rounds each step to them.
_STEP = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Case:
    """A case: its model, a name, and for each data set inputs and right results."""

    name: str
    proto: onnx.ModelProto
    data: tuple[tuple[list[Any], list[Any]], ...]
    rtol: float
    atol: float

    @property
    def expanded(self) -> bool:
        """True if the operator is replaced by the nodes that define it."""
        return "_expanded" in self.name

    def given(self, inputs: list[Any]) -> dict[str, Any]:
        """Return the inputs by name."""
        names = [each.name for each in self.proto.graph.input]
        return dict(zip(names, inputs, strict=False))


@dataclass(frozen=True)
class Loaded:
    """An imported case: the model, and inputs that stay inputs, by the network's names."""

    case: Case
    model: Model
    inputs: Mapping[str, Any]


def cases() -> Iterator[Case]:
    """Yield all cases of ONNX."""
    from onnx.backend.test.case.node import collect_testcases

    for case in collect_testcases(None):
        data = tuple(
            ([_array(each) for each in inputs], [_array(each) for each in outputs])
            for inputs, outputs in case.data_sets
        )
        yield Case(case.name, case.model, data, case.rtol, case.atol)


def _array(value: Any) -> Any:
    return onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def loaded(case: Case) -> Loaded:
    """Import a case. Inputs become constants if they cannot stay inputs; SpecError if none may."""
    inputs = case.given(case.data[0][0])
    declared = {
        each.name: each.type.tensor_type.elem_type
        for each in case.proto.graph.input
        if each.type.HasField("tensor_type")
    }
    if set(declared) != set(inputs):
        raise SpecError("inputs are no tensors, or are left out", got=case.name)
    names = list(inputs)
    few = [name for name in names if declared[name] in _WHOLE]
    last: TilewrightError | None = None
    for fixed in ([], few, [*few, *names[2:]], names[1:]):
        constants = {name: inputs[name] for name in dict.fromkeys(fixed)}
        try:
            model = tilewright.onnx.load(case.proto, constants, batch=False)
        except TilewrightError as error:
            last = error
            continue
        left = [inputs[name] for name in names if name not in constants]
        wanted = [each.name for each in model.network.inputs]
        if len(left) != len(wanted):
            last = SpecError("an input is not used")
            continue
        held = [_held(np.asarray(each)) for each in left]
        return Loaded(case, model, dict(zip(wanted, held, strict=True)))
    assert last is not None
    raise last


def _held(array: Any) -> Any:
    """Return an array in a type that tensors have."""
    other = {"b": np.uint8, "i": np.int32, "u": np.int32}.get(array.dtype.kind)
    return array.astype(other) if array.dtype in _OTHERS else array


def by_reference(one: Loaded) -> list[Any]:
    """Return the results that the reference computes in float64, without compiling anything."""
    network, weights = one.model
    arrays = dict(one.inputs)
    for weight in network.weights:
        arrays[weight.name] = weights[weight.key]
    sizes = {}
    for each in network.inputs:
        for size, own in zip(each.shape, np.shape(arrays[each.name]), strict=True):
            if not isinstance(size, int):
                sizes[size.name] = own
    found = expected_of(network, arrays, sizes)
    return [nearest(found[name].values.value, found[name].type) for name in network.names]


def by_kernel(one: Loaded, kernel: Any) -> list[Any]:
    """Return the results of a compiled network."""
    packed = [kernel.pack(one.model.weights)] if one.model.network.weights else []
    found = kernel(*one.inputs.values(), *packed)
    return list(found) if one.model.network.several else [found]


def differs(one: Loaded, results: list[Any]) -> str | None:
    """Return what is wrong with results; None if they are right."""
    for result, expected in zip(results, one.case.data[0][1], strict=True):
        found = np.asarray(result)
        wanted = np.asarray(expected)
        if found.size != wanted.size:
            return f"shape {found.shape}, expected {wanted.shape}"
        rounded = 4 * _STEP.get(str(wanted.dtype), 0.0)
        try:
            np.testing.assert_allclose(
                found.reshape(wanted.shape).astype(np.float64), wanted.astype(np.float64),
                rtol=max(one.case.rtol, 1e-3, rounded), atol=max(one.case.atol, 1e-6),
            )  # fmt: skip
        except (AssertionError, TypeError) as error:
            return str(error).strip().splitlines()[0]
    return None


def _reason(error: TilewrightError) -> str:
    """Return an error's problem without names of nodes."""
    problem = re.sub(r"node '[^']*' \((\w+), opset \d+\)", r"\1", error.problem)
    return re.sub(r"'[^']*'", "...", problem)[:90]


def survey() -> tuple[dict[str, str], list[Loaded]]:
    """Return for each case "passes", or the reason why it does not; and the cases that pass."""
    found: dict[str, str] = {}
    passed: list[Loaded] = []
    for case in cases():
        try:
            one = loaded(case)
            wrong = differs(one, by_reference(one))
            found[case.name] = "passes" if wrong is None else f"wrong: {wrong}"
            if wrong is None:
                passed.append(one)
        except TilewrightError as error:
            found[case.name] = _reason(error)
        except Exception as error:  # noqa: BLE001 (the survey goes on)
            found[case.name] = f"{type(error).__name__}: {str(error)[:80]}"
    return found, passed


def compiled(passed: list[Loaded], target: str = "avx2") -> dict[str, str]:
    """Return for each case that passes by the reference what its kernel does."""
    found: dict[str, str] = {}
    for at in range(0, len(passed), _MANY):
        some = passed[at : at + _MANY]
        for one, kernel in zip(some, _kernels(some, target), strict=True):
            found[one.case.name] = _kernel_says(one, kernel)
    return found


#: This many kernels are compiled to one library.
_MANY = 40


def _kernels(some: list[Loaded], target: str) -> list[Any]:
    """Return a kernel for each case, or the error that it raises."""
    try:
        return [*tw.compile_many([(one.model.network, None, target) for one in some])]
    except Exception:  # noqa: BLE001 (one of them cannot be compiled)
        return [_kernel(one, target) for one in some]


def _kernel(one: Loaded, target: str) -> Any:
    try:
        return tw.compile(one.model.network, target=target)
    except Exception as error:  # noqa: BLE001 (the survey goes on)
        return error


def _kernel_says(one: Loaded, kernel: Any) -> str:
    if isinstance(kernel, TilewrightError):
        return f"kernel: {_reason(kernel)}"
    if isinstance(kernel, Exception):
        return f"kernel: {type(kernel).__name__}: {str(kernel)[:80]}"
    try:
        wrong = differs(one, by_kernel(one, kernel))
    except Exception as error:  # noqa: BLE001 (the survey goes on)
        return f"call: {type(error).__name__}: {str(error)[:120]}"
    return "passes" if wrong is None else f"wrong: {wrong}"


def main() -> None:
    """Print the survey."""
    found, passed = survey()
    if "--compile" in sys.argv:
        found |= compiled(passed)
    for kind in (False, True):
        own = {name: why for name, why in found.items() if ("_expanded" in name) == kind}
        number = sum(why == "passes" for why in own.values())
        words = "function bodies" if kind else "single operators"
        sys.stdout.write(f"{words}: {number} of {len(own)} pass\n")
        for why, count in Counter(own.values()).most_common():
            if why != "passes":
                names = [name for name, each in own.items() if each == why]
                sys.stdout.write(f"{count:5} {why}: {', '.join(names[:4])}\n")


if __name__ == "__main__":
    main()
