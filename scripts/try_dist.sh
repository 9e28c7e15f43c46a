#!/bin/sh
# Try what is to be published, away from the sources: for each Python that is named (3.12, or a path),
# an empty environment gets the wheel from dist/ and runs what its page on PyPI shows.
#     sh scripts/try_dist.sh 3.11 3.12 3.13 3.14
# With --sdist the sdist is unpacked instead, installed with what its tests need, and tested; PYTEST
# says which tests ("tests/spec tests/docs"; otherwise all, 14 minutes on two cores).
set -eu
cd "$(dirname "$0")/.."
what=wheel
[ "${1:-}" = --sdist ] && what=sdist && shift
[ $# -gt 0 ] || set -- 3
dist=$(pwd)/dist
script=$(pwd)/scripts/try_wheel.py
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

interpreter() { # $1: a version or a path; prints the command
    for found in "$1" "python$1" "$HOME"/.pyenv/versions/"$1".*/bin/python"$1"; do
        if "$found" -c 'import sys' >/dev/null 2>&1; then
            echo "$found"
            return
        fi
    done
    echo "there is no Python $1 here" >&2
    return 1
}

for version in "$@"; do
    python=$(interpreter "$version")
    here=$work/$(basename "$version")
    mkdir "$here"
    "$python" -m venv "$here/venv"
    bin=$here/venv/bin
    echo "$what, $("$bin/python" --version)"
    cd "$here"
    if [ $what = wheel ]; then
        "$bin/python" -m pip install --quiet "$dist"/tilewright-*.whl
        TILEWRIGHT_CACHE_DIR=$here/cache TILEWRIGHT_DATA_DIR=$here/data "$bin/python" "$script"
    else
        tar xzf "$dist"/tilewright-*.tar.gz
        cd tilewright-*
        "$bin/python" -m pip install --quiet --editable '.[test]'
        # shellcheck disable=SC2086  # several paths
        "$bin/python" -m pytest -n 2 ${PYTEST:-}
    fi
    cd "$dist/.."
done
