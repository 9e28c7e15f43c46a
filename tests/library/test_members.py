"""What a library may be asked for, and how it refuses the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError, SpecError, TargetError, TilewrightError
from tilewright.runtime.library.choice import choices
from tilewright.runtime.library.make import library
from tilewright.runtime.library.members import contents
from tilewright.targets import NAMES, load

M, N, K = tw.dim("m"), tw.dim("n"), tw.dim("k")
SMALL = tw.Gemm(4, 4, 4)


def net(k: int, n: int) -> tw.Network:
    """A product of rows and a weight."""
    x, u = tw.Tensor("f32", (M, k)), tw.Tensor("f32", (k, n))
    return tw.network(lambda x, w: x @ w.u).of(x=x, w={"u": u})


def make(kernels: Any, targets: Any = ("scalar",), name: str = "small", **more: Any) -> Any:
    return library(name, kernels, targets=targets, jobs=1, **more)


def test_a_packed_b_brings_what_packs_it() -> None:
    packed = tw.Gemm(4, 16, 8, a="u8", b=tw.Packed("s8", nb=16))
    held = contents("small", {"layer": packed, "plain": SMALL}, ["scalar"])
    assert [each.name for each in held.members] == ["layer", "layer_pack_b", "plain"]
    packers = held.packers(held.members[0])
    assert list(packers) == ["b"] and not held.packers(held.members[2])
    assert packers["b"].spec == tw.Pack(8, 16, "s8", a="u8", nb=16, ldb=tw.dim("ldb"))


def test_a_family_names_its_members_by_their_sizes() -> None:
    held = contents("small", {"f": [SMALL, tw.Gemm(M, N, 4), tw.Gemm(8, 4, 4)]}, ["scalar"])
    (family,) = held.families
    assert [each.name for each in family.members] == ["f_4x4x4", "f_8x4x4", "f_mxnx4"]
    assert family.general is not None and family.general.name == "f_mxnx4"


def test_targets_have_schedules_of_their_own() -> None:
    own = tw.Schedule(tile=(4, 8))
    asked = {"f": (tw.Gemm(8, 8, 8), {"vnni+avx512".partition("+")[2]: own})}
    (member,) = contents("small", asked, ["avx512", "avx2"]).members
    assert member.schedule_on("avx512") == own
    assert member.schedule_on("avx2") == tw.Schedule()


def test_equal_weights_are_one_constant_and_each_format_has_one() -> None:
    weights = {"a": {"u": np.eye(3, 5, dtype=np.float32)}, "b": {"u": np.eye(3, 5, dtype="f4")}}
    made = make({"a": net(3, 5), "b": net(3, 5)}, ["scalar", "avx2"], weights=weights)
    text = made.files["src/small_weights.h"]
    assert text.count("static _Alignas(64) const float") == 2  # one for each target
    assert made.kernels == ("a", "b")
    assert "weights=weights" in made.manifest["command"]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: make({}), SpecError, "a library holds one kernel or more"),
        (lambda: make([SMALL]), SpecError, "a library holds one kernel or more"),
        (lambda: make({"f": 3}), SpecError, "kernel 'f': a spec is a tw.Gemm"),
        (lambda: make({"f": (SMALL, 3)}), ScheduleError, "kernel 'f': a schedule is"),
        (lambda: make({"f": (SMALL, None, "avx2")}), SpecError, "is a spec, or"),
        (lambda: make({"f": []}), SpecError, "family 'f' is empty"),
        (lambda: make({"f": [SMALL, SMALL]}), SpecError, "the same sizes twice"),
        (
            lambda: make({"f": [tw.Gemm(M, 4, 4), tw.Gemm(M, 8, 4)]}),
            SpecError,
            "several kernels with sizes of the call",
        ),
        (
            lambda: make({"f": [SMALL, tw.Gemm(8, 8, 8, beta=1)]}),
            SpecError,
            "family 'f' differ in more than m, n and k",
        ),
        (lambda: make({"f": [tw.Transpose(4, 4)]}), SpecError, "is of tw.Gemm alone"),
        (lambda: make({"printf": SMALL}), SpecError, "cannot be called printf"),
        (lambda: make({"f": SMALL}, name="Small"), SpecError, "the name of a library begins"),
        (lambda: make({"use": SMALL}), SpecError, "two things of the library would be called"),
        (
            lambda: make({"f": SMALL, "f_scalar": SMALL}),
            SpecError,
            "would be called small_f_scalar",
        ),
        (lambda: make({"f": SMALL}, weights={"g": {}}), SpecError, "by the kernels' names"),
        (lambda: make({"f": SMALL}, weights={"f": {}}), SpecError, "'f' has no weights"),
        (
            lambda: make({"f": net(4, 4)}, weights={"f": {"v": np.ones((4, 4), np.float32)}}),
            TilewrightError,
            "kernel 'f': the weights of w are not those",
        ),
        (lambda: make({"f": SMALL}, version="1.0"), SpecError, "version is three numbers"),
        (lambda: make({"f": SMALL}, description="a\nb"), SpecError, "one line of text"),
        (lambda: make({"f": SMALL}, targets=[]), TargetError, "for a list of targets"),
        (lambda: make({"f": SMALL}, targets="avx2"), TargetError, "for a list of targets"),
        (lambda: make({"f": SMALL}, targets=["sve999"]), TargetError, "unknown target"),
        (
            lambda: make({"f": SMALL}, targets=["avx2", "avx2"]),
            TargetError,
            "two targets of a library need the same",
        ),
        (
            lambda: make({"f": SMALL}, targets=["avx512", "avx512+zen5"]),
            TargetError,
            "two targets of a library need the same",
        ),
        (
            lambda: make({"f": (SMALL, {"avx2": tw.Schedule()})}),
            TargetError,
            "a schedule for a target that the library is not for",
        ),
        (
            lambda: make({"f": (tw.Gemm(64, 64, 64), tw.Schedule(tile=(64, 64)))}),
            ScheduleError,
            "'f' for scalar: tile 64x64 needs",
        ),
    ],
)
def test_a_refusal_says_why(
    call: Callable[[], Any], error: type[TilewrightError], message: str
) -> None:
    with pytest.raises(error, match=message) as raised:
        call()
    assert raised.value.where is not None and "test_members" in raised.value.where


def test_a_cpu_chooses_what_is_best_whatever_the_order_given() -> None:
    given = ["scalar", "avx2", "neon", "avx2+vnni", "avx512+vnni", "avx512", "amx"]
    found = [each.name for each in choices(given)]
    assert found == ["amx", "avx512+vnni", "avx512", "avx2+vnni", "avx2", "neon", "scalar"]


@pytest.mark.parametrize("name", NAMES)
def test_c_can_find_out_all_that_a_target_and_its_features_need(name: str) -> None:
    target = load(name).having(load(name).features)
    assert (target.detection is None) == (not target.machine)
    if target.detection is not None:
        assert set(target.cpu_flags) <= set(target.detection.bits)
        words = target.detection.words
        assert {bit.word for bit in target.detection.bits.values()} <= set(words)
        assert all(
            bit.state == 0 or bit.word != words[-1] for bit in target.detection.bits.values()
        )


@pytest.mark.parametrize("name", ["stdio", "math", "immintrin", "arm_neon", "unistd", "elf"])
def test_a_library_does_not_hide_a_header_of_the_system(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        tw.library(name, {"gemm": tw.Gemm(2, 2, 2)}, targets=["scalar"])
    assert name in str(caught.value)
