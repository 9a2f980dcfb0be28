# `make help` lists the targets. Every target makes .venv and installs the pinned versions when they are missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Spinning OpenMP threads on a busy machine turn a 15 µs op into 8 ms.
export OMP_WAIT_POLICY ?= PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test coverage slow lint types docs notebook bench sizes clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The stamp is newer than what decides the installation, so that a second run installs nothing.
$(VENV)/.installed: pyproject.toml setup.py constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(VENV)/.installed  ## train 3 seeds of the small bijection tunnel and write the report
	$(BIN)/bayesattn train bijection --preset quick --seeds 3 --out runs/demo --overwrite

test: $(VENV)/.installed  ## run the tests
	$(BIN)/python -m pytest -n 2 --dist worksteal

coverage: $(VENV)/.installed  ## lines of the package and the kernels that the tests run, Triton bodies apart
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov

slow: $(VENV)/.installed  ## the tests that `make test` leaves out, the table of compiled kernels among them
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

lint: $(VENV)/.installed  ## ruff: lint and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed  ## mypy
	$(BIN)/mypy

docs: $(VENV)/.installed  ## the documentation, into docs/_build; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build

notebook: $(VENV)/.installed  ## run the example notebook and keep its outputs; two minutes
	$(BIN)/python docs/notebook.py examples/first_tunnel.ipynb

bench: $(VENV)/.installed  ## kernel benchmarks beside their peers
	@for file in bench/bench_*.py; do name=$$(basename $$file .py); echo "== $$name"; $(BIN)/python -m bench.$$name || exit 1; done

sizes:  ## median and 90th percentile of file lengths
	@git ls-files '*.py' '*.cpp' '*.h' | xargs wc -l | grep -v total | sort -n | \
	  awk '{n[NR]=$$1; f[NR]=$$2} END {printf "files %d  median %d  p90 %d  longest %d %s\n", NR, n[int((NR+1)/2)], n[int(NR*0.9+0.5)], n[NR], f[NR]}'

clean:  ## remove the environment and the caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage .hypothesis build dist docs/_build *.egg-info
