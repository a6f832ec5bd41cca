# `make demo` and `make test` set everything up by themselves, in .venv; nothing else is touched.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo quick test faults check docs bench clean

demo: .venv/core  ## learn a tokenizer and a model on Python's documentation, and let it write
	@$(BIN)/glassformer demo

quick: .venv/dev  ## what to run while working, under a minute on two cores: lint, and the tests of tests/quick.txt
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q --numprocesses auto @tests/quick.txt

test: .venv/dev  ## every test, doctests included; one thread a process, because threads that compete wait for each other
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -q --numprocesses auto

faults: .venv/dev  ## every fault as often as docs/reliability.md says, and the table of what was survived
	@OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python tests/faults/table.py

check: .venv/dev  ## formatting, lint, types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs src

docs: .venv/docs  ## the documentation as a site: docs/_build/html/index.html
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html docs docs/_build/html
	@echo "the documentation is in docs/_build/html/index.html"

bench: .venv/dev  ## our speed beside the peers', from one run
	@$(BIN)/python benchmarks/train_step.py
	@$(BIN)/python benchmarks/train_step.py --precision bf16
	@$(BIN)/python benchmarks/train_step.py --shape translation --rounds 8
	@$(BIN)/python benchmarks/train_step.py --shape translation --rounds 8 --precision bf16
	@$(BIN)/python benchmarks/tokenizer.py
	@$(BIN)/python benchmarks/decode.py
	@$(BIN)/python benchmarks/decode.py --precision bf16
	@$(BIN)/python benchmarks/plan.py

.venv/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"glassformer needs Python 3.11 or newer, and $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12")'
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/core: pyproject.toml constraints.txt | .venv/python
	@echo "installing glassformer into .venv (torch is large; a minute or two)"
	@$(PIP) -e .
	@touch $@

.venv/docs: pyproject.toml constraints.txt | .venv/python
	@echo "installing glassformer and the tools of its documentation into .venv (torch is large; a minute or two)"
	@$(PIP) -e '.[docs]'
	@touch $@ .venv/core

.venv/dev: pyproject.toml constraints.txt | .venv/python
	@echo "installing glassformer and its test tools into .venv (torch is large; a minute or two)"
	@$(PIP) -e '.[dev]'
	@touch $@ .venv/core .venv/docs

clean:
	rm -rf .venv
