#!/bin/sh
# Build the site of docs/ into build/site. Every warning is an error: a link that leads nowhere, a page
# that no list names, a docstring that cannot be read.
set -eu
cd "$(dirname "$0")/.."
rm -rf build/site build/doctrees
.venv/bin/python -m sphinx -q -j auto -W --keep-going -b html -d build/doctrees docs build/site
