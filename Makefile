# Two commands on a machine with Python 3.11, git and make: `make demo`, `make test`.
# Paths are relative, so that a checkout under a path with spaces works.

PYTHON ?= python3.11
BIN := .venv/bin
# DVC runs stages through a shell: they must find this environment's python first.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONUNBUFFERED := 1
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: demo test test-all check bench env lock data clean

demo: env data            ## train, export, certify and report on the digits
	$(BIN)/rrcm repro
	$(BIN)/rrcm report

test: env                 ## what must pass before a commit
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow"

test-all: env             ## and what takes longer
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

check: env                ## format, lint, test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) test

bench: env                ## speed and memory of the engine; after `make demo` also on its votes
	$(BIN)/rrcm bench
	$(BIN)/rrcm bench --model b --image-size 32 --seconds 5 --batch-size 16
	$(BIN)/python -m benchmarks.noise
	$(BIN)/python -m benchmarks.memory
	test ! -d onnx || $(BIN)/python -m benchmarks.batch_size
	test ! -d onnx || $(BIN)/python -m benchmarks.stopping

env: $(BIN)/.installed    ## the environment, as pinned in requirements.lock

$(BIN)/.installed: pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock \
		--editable ".[dev]"
	touch $@

lock:                     ## pin what an unpinned environment resolves to today
	rm -rf .venv-lock
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --editable ".[dev]"
	(echo '# Constraints for pip, so that every environment is the one that was tested. Made by `make lock`.'; \
		.venv-lock/bin/python -m pip freeze --exclude-editable | sed 's/+cpu//') > requirements.lock
	rm -rf .venv-lock

data: env                 ## raw data in place, checked against data.dvc
	$(BIN)/rrcm data digits

clean:                    ## the environment and scratch; results stay
	rm -rf .venv .rrcm
