#!/bin/sh
# Lint, types, then the tests: those marked `twice` with a cold cache, then all with that cache.
# The last line is pytest's own.
set -eu
cd "$(dirname "$0")/.."

missing=$(sh scripts/system.sh)
if [ -n "$missing" ] && [ -z "${CI:-}" ]; then
    require=0 # the targets that cannot run here were named above
else
    require=200
fi
.venv/bin/ruff check --quiet .
.venv/bin/ruff format --quiet --check .
.venv/bin/python scripts/typecheck.py

umask 022
rm -rf build/test-cache
mkdir -p build/test-cache
pytest() {
    .venv/bin/python -m pytest -n "${WORKERS:-auto}" --maxprocesses=16 --dist=loadgroup \
        --cache-dir=build/test-cache "$@"
}
pytest -m twice -o addopts="-q --strict-markers --import-mode=importlib" || [ $? = 5 ] # 5: none
pytest --warm --require-cases="$require"
