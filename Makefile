# make demo   caption the example pictures        make test    everything that CI checks
# make lint   ruff, mypy, direction of imports    make bench   the benchmarks that need no other data
# make results DATA=DIR   every table of docs/results.md again, the cheap ones first; resumes
PYTHON ?= python3
BIN := .venv/bin
QUICK := $(addprefix tests/,alignment alt assets batch datasets datastore encoders packs security server test_*.py)

.PHONY: demo test test-lowest lint bench results clean

demo: .venv/core
	$(BIN)/recap setup
	$(BIN)/recap caption --explain examples/pictures

test: .venv/all lint
	$(BIN)/recap setup --fast
	-command -v npm > /dev/null && timeout 60 npm install --no-save --silent axe-core   # its test is skipped without it
	$(BIN)/python -m pytest -n 2

# the lowest versions that pyproject.toml allows, with what needs no torch; not part of every run
test-lowest:
	$(PYTHON) -m venv --clear .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest --resolution lowest-direct --editable '.[serve,test]'
	.venv-lowest/bin/recap setup
	.venv-lowest/bin/python -m pytest -n 2 $(QUICK)

lint: .venv/all
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/all
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	$(BIN)/python benchmarks/fit.py
	$(BIN)/python benchmarks/retrieval.py
	$(BIN)/python benchmarks/metrics.py

results: .venv/all
	$(if $(DATA),,$(error DATA=DIR names the folder of data sets, see docs/experiments.md))
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench,experiments,baselines]'
	$(BIN)/python benchmarks/results.py $(DATA) --out results

clean:
	rm -rf .venv

.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

.venv/all: .venv/core
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[clip,hf,ct2,spice,plot,serve,dev]'
	touch $@
