# Works with Python 3.11+ and make alone: everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := worker dispatch ledger schemas tests

.DEFAULT_GOAL := help
.PHONY: help demo test lint format lock clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile

demo: $(VENV)/installed  ## the main job with redeliveries, a crash and a zombie, and its verdict
	$(BIN)/fencepost demo

test: lint  ## ruff, mypy --strict and the whole suite (pytest options: ARGS="-k fence -x")
	$(BIN)/pytest $(ARGS)

lint: $(VENV)/installed  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

format: $(VENV)/installed  ## what ruff can mend by itself
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: $(VENV)/installed  ## newest versions into constraints.txt
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade pyproject.toml --extra dev --extra otel --universal --python-version 3.11 \
	    --no-emit-index-url --no-header --no-annotate --output-file constraints.new
	{ sed -n '/^#/p;/^#/!q' constraints.txt; cat constraints.new; } > constraints.tmp
	rm constraints.new && mv constraints.tmp constraints.txt

clean:  ## removes what the other targets made
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find . \( -name '*.egg-info' -o -name __pycache__ \) -not -path './.git/*' -prune -exec rm -rf {} +

# The stamp is as new as the newest of its prerequisites: an install that broke off is done again.
$(VENV)/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("fencepost needs Python 3.11 or newer: make PYTHON=python3.12" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,otel]'
	touch $@
