"""threadpoolctl limits the threads of kernels, in a process of its own: it counts libraries."""

from __future__ import annotations

from support.processes import python

CODE = """
import sys
import numpy as np
{first}
import tilewright as tw

spec = tw.Gemm(256, 256, 64)
kernel = tw.compile(spec, tw.Schedule(loops="NMk"))
asked = tw.compile(spec, tw.Schedule(loops="NMk", threads=4))
serial = tw.compile(tw.Gemm(4, 4, 4))
a, b = np.ones((256, 64), np.float32), np.ones((64, 256), np.float32)
{second}
own = [each for each in threadpoolctl.threadpool_info() if each["user_api"] == "tilewright"]
print(len(own))
"""
LIMITED = """
import threading, os
def threads():
    return len(os.listdir("/proc/self/task"))
before = threads()
with threadpoolctl.threadpool_limits(1, user_api="tilewright"):
    kernel(a, b)
    print(threads() - before)
    asked(a, b)
    print(threads() - before)
kernel(a, b)
"""


def test_limits_hold_for_kernels_while_they_are_set() -> None:
    code = CODE.format(first="import threadpoolctl", second=LIMITED)
    alone, together, found = python(code).splitlines()
    assert alone == "0" and found == "1"
    assert int(together) >= 1  # threads= beats all limits


def test_nothing_is_imported_that_the_program_did_not() -> None:
    code = CODE.format(
        first="", second="print('threadpoolctl' in sys.modules)\nimport threadpoolctl"
    )
    imported, found = python(code).splitlines()
    assert imported == "False" and found == "0"
