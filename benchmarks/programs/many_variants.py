"""Prints the seconds to plan 1000 variants of a few specs and render their C."""

import sys
from itertools import islice
from time import perf_counter

import tilewright as tw
from tilewright.generate import Request, generate
from tilewright.runtime.machine.host import resolve

COUNT = 1000
SIZES = range(60, 100)

start = perf_counter()
target = resolve(sys.argv[1])
wanted = (
    (spec, schedule)
    for spec in (tw.Gemm(m, m - 16, 64, beta=1) for m in SIZES)
    for schedule in tw.variants(spec, target=sys.argv[1])
)
done = 0
for done, (spec, schedule) in enumerate(islice(wanted, COUNT), 1):
    generate([Request(f"variant_{done}", spec, schedule, target)])
if done < COUNT:
    sys.exit(f"only {done} variants of {len(SIZES)} specs")
print(perf_counter() - start)
