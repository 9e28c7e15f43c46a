"""Tune on a Dask cluster, and multiply a matrix in blocks on it.

A spec travels to the workers; each tunes it for its own CPU, into a database of its own, and sends
what it found back as lines, which are merged. Workers of several kinds of CPU each leave a winner.
Then the blocks of a Dask array are multiplied by the tuned kernels, which are built where they run.
A task makes one block of C of a row of blocks of A and a column of blocks of B: it needs
(2 * SIZE + 128) * 128 * 4 bytes, which is printed.

    python examples/dask_cluster.py 20 1024         (seconds of tuning, and the matrices' size)

It starts two processes on this machine. It needs Dask: pip install '.[dask,tune]' in a checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.runtime.tuned import Database
from tilewright.tuning.tune import Tuning

#: Blocks of C, and of K, in elements: what a worker's kernel multiplies.
BLOCK = 128
SPEC = tw.Gemm(BLOCK, BLOCK, BLOCK, beta=1)


def tune_here(spec: tw.Gemm, seconds: float, search: str) -> tuple[str, list[str]]:
    """On a worker: tune for its CPU; the CPU's name and the lines of its database."""
    with TemporaryDirectory() as folder:
        database = Database(Path(folder) / "tuned.sqlite3")
        tuning = Tuning(spec, seconds=seconds, search=search, database=database)
        for _ in tuning.steps():
            pass
        return tuning.subject.cpu, list(database.export())


def tune_on(client: Any, seconds: float, search: str = "optuna") -> Database:
    """One tuning on each CPU type of the cluster, merged into this user's database.

    Workers of one machine are asked in turn: they would disturb each other's measurements.
    """
    addresses: dict[str, str] = {}
    for address, cpu in client.run(_cpu).items():
        addresses.setdefault(cpu, address)
    merged = Database()
    for cpu, address in addresses.items():
        found = client.submit(tune_here, SPEC, seconds, search, workers=[address], pure=False)
        _, lines = found.result()
        results, winners = merged.merge(lines)
        print(f"{cpu}: {results} results and {winners} winner(s) merged")
    client.run(learn, list(merged.export()))
    return merged


def learn(lines: list[str]) -> tuple[int, int]:
    """On a worker: what all found, for whichever CPU this is."""
    return Database().merge(lines)


def _cpu() -> str:
    from tilewright.runtime.tuned import cpu_name

    return cpu_name()


def multiply(a: Any, b: Any) -> Any:
    """The product of two Dask arrays of float32 in square blocks of BLOCK, as a Dask array."""
    import dask.array as da

    return da.blockwise(_sum_of_blocks, "mn", a, "mk", b, "kn", dtype=np.float32, concatenate=False)


def _sum_of_blocks(row: list[Any], column: list[Any]) -> Any:
    """One block of C: the kernel is compiled once in each process, with the stored winner."""
    kernel = tw.compile(SPEC)
    c = np.zeros((BLOCK, BLOCK), np.float32)
    for a, b in zip(row, column, strict=True):
        kernel(_aligned(a), _aligned(b), c)
    return c


def _aligned(block: Any) -> Any:
    """A block as kernels take it: what came over the network may begin anywhere."""
    return np.require(block, np.float32, ["C", "ALIGNED"])


def memory_per_task(size: int) -> int:
    """Bytes for one block of C: a row of blocks of A, a column of blocks of B, and itself."""
    return (2 * size + BLOCK) * BLOCK * 4


def main(seconds: float = 20, size: int = 1024, search: str = "optuna") -> int:
    """Tune on two processes, multiply, and compare with numpy; 1 if they differ."""
    import dask.array as da
    from distributed import Client, LocalCluster

    if size % BLOCK:
        print(f"the size is a multiple of {BLOCK}")
        return 2
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size), np.float32) for _ in range(2))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        found = tune_on(client, seconds, search)
        for winner in found.winners():
            print(f"{winner.subject.cpu}: {winner.ratio:.2f} times the default")
        blocks = [da.from_array(one, chunks=(BLOCK, BLOCK)) for one in (a, b)]
        c = multiply(*blocks).compute()
    kib = memory_per_task(size) / 1024
    print(f"{size} x {size} in blocks of {BLOCK}: {kib:.0f} KiB for each block that is computed")
    bound = (size + 4) * np.finfo(np.float32).eps * (abs(a) @ abs(b))
    wrong = int(np.count_nonzero(abs(c - a.astype(np.float64) @ b) > bound))
    print(f"{wrong} of {c.size} elements beyond the bound")
    return 1 if wrong else 0


if __name__ == "__main__":
    given = dict(enumerate(sys.argv))
    sys.exit(main(float(given.get(1, "20")), int(given.get(2, "1024"))))
