"""A kernel that only records its calls, to look at what the dispatcher hands over."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.plan.formats.layout import PackedFormat
from tilewright.runtime.build.compilers import find_compiler
from tilewright.runtime.build.toolchain import compile_library
from tilewright.runtime.call import dispatch
from tilewright.runtime.call.descriptor import descriptor
from tilewright.spec.gemm import Gemm, Spec
from tilewright.spec.operands import Packed
from tilewright.spec.signature import Signature, signature
from tilewright.targets import load

#: What a packed B must be.
FORM = PackedFormat("s8", "s8", itemsize=1, k=6, n=7, nb=8, group=4, sums=True)
FORMAT = FORM.text
TEXT = (Path(__file__).parent.parent / "data" / "recorder.c").read_text()


class Recorder:
    """The recorder's library; ``take`` gives it a signature, ``call`` goes through C."""

    def __init__(self, folder: Path) -> None:
        target = load("scalar")
        compiler = find_compiler(target, emulated=False)
        self.path = compile_library(TEXT, target, compiler, folder, "recorder")
        self.library = ctypes.CDLL(str(self.path))
        self.signature: Signature
        self.words: np.ndarray[Any, Any]

    def take(self, spec: Spec) -> Signature:
        """Stand in for the kernel of ``spec`` from now on."""
        packed = isinstance(spec, Gemm) and isinstance(spec.b, Packed)
        return self.stand_for(signature(spec, {"b": FORM} if packed else None))

    def stand_for(self, signature: Signature) -> Signature:
        """Stand in for a kernel of this signature from now on."""
        self.signature = signature
        self._static = {
            p.name: np.array(p.static_offsets, np.int64)
            for p in self.signature.arrays
            if p.static_offsets is not None
        }
        self.words = descriptor(
            self.signature,
            (
                dispatch.symbol(self.path, "recorder_invoke"),
                dispatch.symbol(self.path, "recorder_scratch_bytes"),
            ),
            static={name: dispatch.address(block) for name, block in self._static.items()},
        )
        self._set("recorder_arrays", len(self.signature.arrays))
        self._set("recorder_slots", len(self.signature.sizes))
        return self.signature

    def _set(self, name: str, value: int) -> None:
        ctypes.c_int64.in_dll(self.library, name).value = value

    @property
    def scratch(self) -> int:
        """Bytes that are asked for; after a call, the address of what was given."""
        return ctypes.c_int64.in_dll(self.library, "recorder_scratch").value

    @scratch.setter
    def scratch(self, size: int) -> None:
        self._set("recorder_scratch", size)

    @property
    def calls(self) -> int:
        return ctypes.c_int64.in_dll(self.library, "recorder_calls").value

    @property
    def pointers(self) -> list[int]:
        found = (ctypes.c_int64 * 64).in_dll(self.library, "recorder_pointers")
        return list(found)[: len(self.signature.arrays)]

    @property
    def sizes(self) -> tuple[int, ...]:
        found = (ctypes.c_int64 * 64).in_dll(self.library, "recorder_sizes")
        return tuple(found)[: len(self.signature.sizes)]

    @property
    def scalars(self) -> tuple[float, ...]:
        return tuple((ctypes.c_double * 2).in_dll(self.library, "recorder_scalars"))

    def call(self, *arrays: Any) -> bool:
        """Whether the dispatcher accepted ``arrays``, and so ran the recorder."""
        before = self.calls
        status = dispatch.dispatcher().call(self.words)(arrays)
        assert status in (dispatch.DONE, dispatch.UNDECIDED)
        assert (self.calls == before + 1) == (status == dispatch.DONE)
        return status == dispatch.DONE
