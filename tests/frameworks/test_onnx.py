"""ONNX files as networks: trained models, names, sizes, constants, ONNX's own cases, and errors."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import Cases

import tilewright as tw
from tilewright.errors import ArgumentError, SpecError

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed")
from onnx import numpy_helper, parser  # noqa: E402
from support import onnx_cases  # noqa: E402

import tilewright.onnx  # noqa: E402


def model(text: str, opset: int = 17) -> Any:
    """A model in ONNX's own language; ``text`` is its graph."""
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "ai.onnx.ml" : 3]>'
    return parser.parse_model(f"{header}\n{text}")


def call(loaded: Any, *arrays: Any) -> Any:
    """The results of the compiled network."""
    net = tw.compile(loaded.network)
    packed = [net.pack(loaded.weights)] if loaded.weights else []
    return net(*arrays, *packed)


def test_the_example_of_load_runs() -> None:
    names = {"tw": tw, "np": np, "onnx": onnx}
    flags = doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
    text = inspect.getdoc(tilewright.onnx.load) or ""
    example = doctest.DocTestParser().get_doctest(text, names, "load", None, 0)
    assert runner.run(example).failed == 0


# --- trained models ------------------------------------------------------------------------------


def trained(name: str) -> Path:
    """A file of the package openwakeword, which is not imported: it needs more packages."""
    found = importlib.util.find_spec("openwakeword")
    if found is None or not found.submodule_search_locations:
        pytest.skip("openwakeword 0.5.1 is not installed")
    return Path(found.submodule_search_locations[0]) / "resources" / "models" / f"{name}_v0.1.onnx"


def in_float64(path: Path, x: Any) -> Any:
    """The result of a file of layers, norms and activations, in float64."""
    graph = onnx.load(path).graph
    held = {each.name: numpy_helper.to_array(each).astype(float) for each in graph.initializer}
    held[graph.input[0].name] = x.astype(float)
    functions: dict[str, Any] = {
        "Flatten": lambda a: a.reshape(len(a), -1),
        "Gemm": lambda a, b, c: a @ b.T + c,
        "Relu": lambda a: np.maximum(a, 0),
        "Sigmoid": lambda a: 1 / (1 + np.exp(-a)),
        "ReduceMean": lambda a: a.mean(axis=-1, keepdims=True),
        "Pow": np.power, "Sub": np.subtract, "Add": np.add, "Mul": np.multiply,
        "Div": np.divide, "Sqrt": np.sqrt,
    }  # fmt: skip
    for node in graph.node:
        if node.op_type == "Constant":
            value = numpy_helper.to_array(node.attribute[0].t).astype(float)
        else:
            value = functions[node.op_type](*(held[name] for name in node.input))
        held[node.output[0]] = value
    return held[graph.output[0].name]


@pytest.mark.parametrize(("name", "stages"), [("alexa", 3), ("hey_mycroft", 5)])
def test_trained_models_are_near_float64_for_batches_of_any_size(name: str, stages: int) -> None:
    path = trained(name)
    network, weights = tilewright.onnx.load(path)
    net = tw.compile(network)
    packed = net.pack(weights)
    (given,) = network.inputs
    assert (given.name, given.shape) == ("onnx_Flatten_0", (tw.dim("rows"), 16, 96))
    assert len(re.findall(r"^stage \d", net.explain(rows=1), re.MULTILINE)) == stages
    x = np.random.default_rng(5).standard_normal((33, 16, 96)).astype(np.float32)
    x *= np.geomspace(0.01, 3, 33, dtype=np.float32)[:, None, None]
    right = in_float64(path, x)
    for rows in (33, 1, 2, 0):
        found = net(x[:rows], packed)
        assert found.shape == (rows, 1)
        assert np.abs(found - right[:rows]).max(initial=0) <= 1e-6


@pytest.mark.filterwarnings("ignore")
def test_networks_of_scikit_learn() -> None:
    convert = pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    from sklearn.datasets import load_digits
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    digits = load_digits()
    x, y = digits.data[:600].astype(np.float32), digits.target[:600] + 3
    made = make_pipeline(StandardScaler(), MLPClassifier((16,), max_iter=60, random_state=0))
    made.fit(x, y)
    file = convert.to_onnx(made, x[:1], target_opset=15)  # its result is a list of dicts
    label, share = call(tilewright.onnx.load(file), x)
    np.testing.assert_allclose(share, made.predict_proba(x), atol=1e-5)
    assert label.dtype == np.int32 and np.mean(label == made.predict(x)) > 0.99

    texts = MLPClassifier((4,), max_iter=2).fit(x, [f"class {each}" for each in y])
    file = convert.to_onnx(texts, x[:1])
    with pytest.raises(SpecError, match="texts are not computed with"):
        tilewright.onnx.load(file)
    shares = tilewright.onnx.load(file, results=["output_probability"]).network
    assert [result.tensor.shape[1] for result in shares.results if result.tensor] == [10]


# --- ONNX's own cases ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loaded() -> tuple[dict[str, str], list[onnx_cases.Loaded]]:
    return onnx_cases.survey()


@pytest.mark.filterwarnings("ignore")
def test_cases_of_single_nodes_pass(
    loaded: tuple[dict[str, str], list[onnx_cases.Loaded]],
) -> None:
    found, _ = loaded
    passed = [name for name, why in found.items() if why == "passes"]
    bodies = sum("_expanded" in name for name in passed)
    assert len(passed) - bodies >= 800 and bodies >= 380
    # A tie of rounding, which float64 takes another way.
    wrong = {name for name, why in found.items() if why.startswith("wrong")}
    assert wrong <= {"test_dynamicquantizelinear", "test_dynamicquantizelinear_expanded"}
    crashed = {name: why for name, why in found.items() if "Error:" in why}
    assert not crashed


@pytest.mark.filterwarnings("ignore")
def test_some_cases_of_single_nodes_compiled(
    loaded: tuple[dict[str, str], list[onnx_cases.Loaded]], cases: Cases
) -> None:
    some = [one for one in loaded[1] if "_expanded" not in one.case.name][7::29]
    kernels = tw.compile_many([(one.model.network, None, "avx2") for one in some])
    for one, kernel in zip(some, kernels, strict=True):
        assert onnx_cases.differs(one, onnx_cases.by_kernel(one, kernel)) is None, one.case.name
    cases.count("avx2", "native", len(some))


# --- names, sizes, constants ---------------------------------------------------------------------


def test_names_and_free_sizes_are_those_of_the_file() -> None:
    text = """g (float[batch, 3] out, float[3] for, float[batch, other] b) => (float[batch, 3] y)
    { one = Constant <value = int64[1] {1}> ()
      s = ReduceSum (b, one)
      a = Add (out, for)
      y = Mul (a, s) }"""
    file = model(text)
    network = tilewright.onnx.load(file).network
    assert [each.name for each in network.inputs] == ["n_out", "n_for", "b"]
    batch, other = tw.dim("batch"), tw.dim("other")
    assert [each.shape for each in network.inputs] == [(batch, 3), (3,), (batch, other)]


FIXED = "g (float[1, 4] x) => (float[1, 2] y) <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}>"


def test_a_batch_of_one_is_free_where_the_graph_permits_it() -> None:
    file = model(FIXED + "{ y = MatMul (x, w) }")
    assert tilewright.onnx.load(file).network.inputs[0].shape == (tw.dim("rows"), 4)
    assert tilewright.onnx.load(file, batch=False).network.inputs[0].shape == (1, 4)
    bound = FIXED + "{ s = Constant <value = int64[2] {1, 4}> () z = Reshape (x, s)\n"
    bound += "y = MatMul (z, w) }"
    assert tilewright.onnx.load(model(bound)).network.inputs[0].shape == (1, 4)
    with pytest.raises(SpecError, match=r"Reshape, opset 17"):
        tilewright.onnx.load(model(bound), batch=True)
    with pytest.raises(SpecError, match="not a fixed batch of one"):
        tilewright.onnx.load(model("g (float[2] x) => (float[2] y) { y = Relu (x) }"), batch=True)


BRANCHES = """g (float[rows, 2] x, {condition}) => (float[rows, 2] y)
{{ {before}
   y = If (c) <then_branch = t () => (float[rows, 2] a) {{ a = Relu (x) }},
               else_branch = e () => (float[rows, 2] b) {{ b = Neg (x) }}> }}"""


def test_an_if_is_the_branch_that_a_constant_takes_or_a_choice_of_both() -> None:
    text = BRANCHES.format(
        condition="int64 sr",
        before="k = Constant <value_int: int = 16000> () c = Equal (sr, k)",
    )
    taken = tilewright.onnx.load(model(text), constants={"sr": 16000}).network
    assert repr(taken.results) == "(relu(x),)"
    other = tilewright.onnx.load(model(text), constants={"sr": 8000}).network
    assert repr(other.results) == "(-x,)"
    text = BRANCHES.format(
        condition="float[1, 1] z",
        before="n = Constant <value_float: float = 0.0> () c = Greater (z, n)",
    )
    both = tilewright.onnx.load(model(text))
    x, one = np.array([[1, -2]], np.float32), np.ones((1, 1), np.float32)
    np.testing.assert_array_equal(call(both, x, one), np.maximum(x, 0))
    np.testing.assert_array_equal(call(both, x, -one), -x)


def test_shapes_are_computed_when_the_file_is_loaded() -> None:
    text = """g (float[rows, 2, 3] x) => (float[rows, 6] y)
    { s = Shape (x)
       zero = Constant <value = int64[1] {0}> ()
       one = Constant <value = int64[1] {1}> ()
       first = Slice (s, zero, one)
       rest = Constant <value = int64[1] {-1}> ()
       both = Concat <axis: int = 0> (first, rest)
       y = Reshape (x, both) }"""
    network = tilewright.onnx.load(model(text)).network
    assert network.results[0].tensor is not None
    assert network.results[0].tensor.shape == (tw.dim("rows"), 6)


def test_known_places_are_gathered_by_runs() -> None:
    """Products of all pairs below the diagonal, as DLRM has them: 91 places in 13 runs."""

    def gathered(places: Any) -> Any:
        text = f"""g (float[rows, 196] x) => (float[rows, {len(places)}] y)
        <int64[{len(places)}] places = {{{", ".join(map(str, places))}}}>
        {{ y = Gather <axis = 1> (x, places) }}"""
        return tilewright.onnx.load(model(text))

    x = np.arange(392, dtype=np.float32).reshape(2, 196)
    below = np.flatnonzero(np.tri(14, 14, -1))
    np.testing.assert_array_equal(call(gathered(below), x), x[:, below])
    with pytest.raises(tw.SpecError, match="98 runs"):
        gathered(np.arange(0, 196, 2))


@pytest.mark.parametrize(("axis", "shape"), [(0, (4, 3)), (1, (5, 2))])
def test_rows_are_added_as_pytorch_exports_it(axis: int, shape: tuple[int, int]) -> None:
    """``index_add`` becomes numbers that are repeated along the other axis."""
    rows, columns = shape
    at = (rows, 1) if axis == 0 else (1, columns)
    text = f"""g (float[5, 3] x, int32[{at[0]}, {at[1]}] i, float[{rows}, {columns}] y)
    => (float[5, 3] z) <int64[2] wide = {{{rows}, {columns}}}>
    {{ e = Expand (i, wide)
       z = ScatterElements <axis: int = {axis}, reduction: string = "add"> (x, e, y) }}"""
    x, y = np.arange(15, dtype=np.float32).reshape(5, 3), np.ones(shape, np.float32)
    numbers, right = np.array([1, 2, 1, -1], np.int32)[: shape[axis]], x.copy()
    np.add.at(right.swapaxes(0, axis), numbers, y.swapaxes(0, axis))
    found = call(tilewright.onnx.load(model(text, 18)), x, numbers.reshape(at), y)
    np.testing.assert_array_equal(found, right)
    replaced = tilewright.onnx.load(model(text.replace('"add"', '"none"'), 18))
    right = x.copy()
    right.swapaxes(0, axis)[numbers[:2]] = y.swapaxes(0, axis)[:2]
    first = (x, numbers[[0, 1, 0, 1][: shape[axis]]].reshape(at), y)
    np.testing.assert_array_equal(call(replaced, *first), right)


def test_axes_of_free_size_are_joined_and_counted() -> None:
    text = """g (float[b, s, 4] x) => (float[r, 4] y)
    <int64 zero = {0}, int64 one = {1}, int64[2] rows = {-1, 4}>
    { sizes = Shape (x)
      s = Gather (sizes, one)
      b = Gather (sizes, zero)
      many = Mul (b, s)
      counted = Range (zero, many, one)
      column = Reshape (counted, shape)
      f = Cast <to: int = 1> (column)
      two = ConstantOfShape <value: tensor = float[1] {2}> (sizes)
      z = Add (x, two)
      r = Reshape (z, rows)
      y = Add (r, f) }"""
    file = model(text)
    file.graph.initializer.append(numpy_helper.from_array(np.array([-1, 1]), "shape"))
    loaded = tilewright.onnx.load(file)
    assert loaded.network.results[0].tensor == ("f32", (tw.dim("b") * tw.dim("s"), 4))
    x = np.random.default_rng(1).standard_normal((2, 3, 4)).astype(np.float32)
    np.testing.assert_allclose(call(loaded, x), x.reshape(6, 4) + 2 + np.arange(6)[:, None])


def test_the_largest_elements_and_their_places() -> None:
    text = """g (float[rows, 6] x) => (float[rows, 3] y, int64[rows, 3] i) <int64[1] k = {3}>
    { y, i = TopK (x, k) }"""
    low = -np.inf
    x = np.array([[3, 7, 7, 1, 7, 3], [low, 2, low, low, low, low]], np.float32)
    y, places = call(tilewright.onnx.load(model(text)), x)
    np.testing.assert_array_equal(y, [[7, 7, 7], [2, low, low]])
    np.testing.assert_array_equal(places, [[1, 2, 4], [1, 0, 2]])


def test_a_function_of_the_file_is_expanded() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    g (float[rows, 2] x) => (float[rows, 2] y) { y = own.twice <by: float = 3.0> (x) }
    <domain: "own", opset_import: ["" : 17]>
    twice <by> (a) => (b) { c = Constant <value_float: float = @by> () b = Mul (a, c) }"""
    network = tilewright.onnx.load(parser.parse_model(text)).network
    assert repr(network.results) == "(x * 3,)"


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        ("g (float[2] x) => (float[2] y) { y = Acos (x) }", r"Acos, opset 17\): this operator"),
        ("g (float[2] x) => (float[2] y) { y = other.Own (x) }", "other.Own"),
        ("g (float[2] x) => (float[3] y) { y = Add (x, z) }", "no earlier value has this name"),
        ("g (float[2] x, int64[1] s) => (float[a] y) { y = Reshape (x, s) }", "a shape is comp"),
        ("g (float[2] x) => (float[2] y) { y = Constant <value_floats = [1.0, 2.0]> () }",
         "depends on no input"),
        ("g (complex64[2] x) => (complex64[2] y) { y = Identity (x) }", "no such element type"),
        ("g (float x) => (float y) { y = RandomUniformLike (x) }", "is not imported"),
        ("""g (float[3] x, int32[2, 1] i, float[2] u) => (float[3] y)
         { y = ScatterND <reduction: string = "mul"> (x, i, u) }""", "replaced or added"),
        ("""g (float[3, 3] x, int32[2, 2] i, float[2] u) => (float[3, 3] y)
         { y = ScatterND <reduction: string = "add"> (x, i, u) }""", "rows have one number each"),
    ],
)  # fmt: skip
def test_what_no_network_can_be_is_refused(graph: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        tilewright.onnx.load(model(graph))


def test_files_and_constants_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    place = tmp_path / "bad.onnx"
    place.write_bytes(b"\x08\x07garbage")
    with pytest.raises(ArgumentError, match="no ONNX file"):
        tilewright.onnx.load(place)
    with pytest.raises(FileNotFoundError):
        tilewright.onnx.load(tmp_path / "missing.onnx")
    with pytest.raises(ArgumentError, match="loaded from a file"):
        tilewright.onnx.load(3)
    file = model("g (float[2] x, float[2] z) => (float[2] y) { y = Add (x, z) }")
    with pytest.raises(ArgumentError, match="no input 'q'"):
        tilewright.onnx.load(file, constants={"q": 1})
    with pytest.raises(ArgumentError, match="no such results"):
        tilewright.onnx.load(file, results=["q"])
    with pytest.raises(ArgumentError, match="another shape"):
        tilewright.onnx.load(file, constants={"z": np.zeros(3)})
