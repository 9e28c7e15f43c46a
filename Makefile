# Every target sets up what it needs in .venv; a second run finds it there.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= auto
export PYTHON

.PHONY: help demo test docs dist lint types format golden bench clean
.DEFAULT_GOAL := help

help: ## say what there is
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile

demo: ## the kernels on real data; without root, without a C compiler on the machine
	@sh scripts/venv.sh "demo$$(command -v gcc >/dev/null || command -v clang >/dev/null || echo ,zig)"
	@$(BIN)/tilewright demo

test: ## everything: lint, types, site, tests; as root on Debian it installs compilers and emulators
	@sh scripts/venv.sh test,dev,docs
	@WORKERS=$(WORKERS) sh scripts/test.sh

docs: ## the site of the documentation, in build/site; a warning is an error
	@sh scripts/venv.sh docs
	@sh scripts/site.sh
	@echo "build/site/index.html"

dist: ## the sdist and the wheel, in dist/, and what PyPI would say of them
	@sh scripts/venv.sh dist
	@rm -rf dist build/lib
	@$(BIN)/python -m build --outdir dist .
	@$(BIN)/python -m twine check --strict dist/*

lint: ## style, format and types
	@sh scripts/venv.sh test,dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python scripts/typecheck.py

types: ## types alone
	@sh scripts/venv.sh test,dev
	@$(BIN)/python scripts/typecheck.py

format: ## put the Python into its format
	@sh scripts/venv.sh test,dev
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

golden: ## write generated/ anew
	@sh scripts/venv.sh test,dev
	@$(BIN)/python -m pytest -m golden --update-golden

bench: ## the figures, against all peers
	@sh scripts/venv.sh test,bench
	@$(BIN)/python -m benchmarks

clean: ## remove what was built, the virtual environment too
	@rm -rf .venv build dist tilewright.egg-info
