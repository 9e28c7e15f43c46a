#!/bin/sh
# Style, types, the site, then the tests: those marked `twice` with a cold cache, then all with that cache.
# Each phase says what it is and how long it took; the last line is pytest's own.
set -eu
cd "$(dirname "$0")/.."

missing=$(sh scripts/system.sh)
if [ -n "$missing" ] && [ -z "${CI:-}" ]; then
    require=0 # the targets that cannot run here were named above
else
    require=200
fi

# PyTorch is large, and there is a wheel without GPUs: where it cannot be had its tests are skipped.
.venv/bin/python -c "import torch" 2>/dev/null ||
    .venv/bin/python -m pip install --quiet --retries 0 "torch==2.13.0+cpu" 2>/dev/null ||
    .venv/bin/python -m pip install --quiet --retries 0 "torch==2.13.0+cpu" \
        --extra-index-url https://download.pytorch.org/whl/cpu 2>/dev/null ||
    echo "PyTorch 2.13 for CPUs cannot be installed: the tests of tilewright.torch are skipped"

# Trained models that the tests of tilewright.onnx read; their licence is CC BY-NC-SA 4.0, and nothing of
# them is shipped. The package's own code is not run, so that what it requires is not installed.
.venv/bin/python -c "import importlib.util as u, sys; sys.exit(u.find_spec('openwakeword') is None)" ||
    .venv/bin/python -m pip install --quiet --retries 0 --no-deps "openwakeword==0.5.1" 2>/dev/null ||
    echo "openwakeword 0.5.1 cannot be installed: the tests of its models are skipped"

phases=5
phase=0
begin() { # $1: what is done
    phase=$((phase + 1))
    started=$(date +%s)
    echo "phase $phase of $phases: $1"
}
took() {
    echo "phase $phase of $phases took $(($(date +%s) - started)) s"
}
first=$(date +%s)

begin "style"
.venv/bin/ruff check --quiet .
.venv/bin/ruff format --quiet --check .
took
begin "types"
.venv/bin/python scripts/typecheck.py
took
begin "the site of the documentation"
sh scripts/site.sh
took

umask 022
rm -rf build/test-cache
mkdir -p build/test-cache
pytest() {
    .venv/bin/python -m pytest -n "${WORKERS:-auto}" --maxprocesses=16 --dist=loadgroup \
        --cache-dir=build/test-cache "$@"
}
begin "the tests that are run twice, with a cold cache"
pytest -m twice -o addopts="-q --strict-markers --import-mode=importlib" || [ $? = 5 ] # 5: none
took
begin "all tests, with that cache (so far: $(($(date +%s) - first)) s; pytest says what they take)"
pytest --warm --require-cases="$require"
