#!/bin/sh
# Make .venv and install tilewright into it, editable, with the extras named ("test,dev").
# Needs no root. Does nothing when that was done before for this pyproject.toml.
set -eu
cd "$(dirname "$0")/.."
extras=$1
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "tilewright needs Python 3.11 or later; got $("$python" --version 2>&1)." >&2
    echo "Try: make PYTHON=python3.12 ..." >&2
    exit 1
}

# The path is part of it: a copied or moved checkout gets its own.
state="$(pwd) $("$python" --version) $(cksum <pyproject.toml)"
stamp=".venv/.installed-$extras"
[ "$(cat "$stamp" 2>/dev/null)" = "$state" ] && exit 0

if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm -rf .venv
    if ! "$python" -c 'import ensurepip' 2>/dev/null && [ "$(id -u)" = 0 ] &&
        [ "$(command -v "$python")" = /usr/bin/python3 ] && command -v apt-get >/dev/null; then
        sh scripts/apt.sh python3-venv
    fi
    if ! "$python" -m venv .venv >/dev/null 2>&1; then # Debian without python3-venv
        rm -rf .venv
        "$python" -m venv --without-pip .venv
        .venv/bin/python scripts/bootstrap_pip.py
    fi
fi
echo "installing tilewright[$extras] into .venv ..." >&2
.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$extras]"
printf '%s\n' "$state" >"$stamp"
