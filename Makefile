# Two commands on a machine with Python 3.11, git and make: `make demo`, `make test`.
# Paths are relative, so that a checkout under a path with spaces works.

PYTHON ?= python3.11
BIN := .venv/bin
# DVC runs stages through a shell: they must find this environment's python first.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONUNBUFFERED := 1
# One more than cores: a fifth of the time tests wait, for a server, a lock or a kill.
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))
JOBS ?= 2

.PHONY: help demo test test-all check docs bench gpu gpu-cifar10 env lock audit data clean release

help:                     ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

demo: env data            ## train, export, certify and report on the digits
	$(BIN)/rrcm repro --jobs $(JOBS)
	$(BIN)/rrcm report

test: env                 ## all tests but the slow ones
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow"

test-all: env             ## and what takes longer
	$(BIN)/pytest -n $(WORKERS) --dist worksteal

check: env                ## format, lint, types, test: what must pass before a commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

docs: env                 ## the documentation as a site: site/index.html
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs . site

bench: env                ## speed of the engine and of its noise
	$(BIN)/python -m benchmarks.engine
	$(BIN)/python -m benchmarks.engine --model b --image-size 32 --seconds 5 --batch-size 16
	$(BIN)/python -m benchmarks.noise

gpu: env                  ## what agrees with the CPU, and how fast, on this machine's GPU: ten minutes
	$(BIN)/python -m benchmarks.gpu

gpu-cifar10:              ## rows of CIFAR-10 on a GPU that is at hand for a quarter of an hour; needs no DVC
	$$(test -x $(BIN)/python && echo $(BIN)/python || echo python3) -m benchmarks.gpu_cifar10

release: env              ## renew release/, which `dvc pull` reads, from DVC's cache
	$(BIN)/python -m pipeline.project.release

# DVC looks for a relative folder anew wherever it changes to, and finds none in an experiment's.
env: $(BIN)/.installed    ## the environment, as pinned in a lock: every file of it by its SHA-256
	@test ! -d .dvc || grep -qsxF "    site_cache_dir = $(CURDIR)/.dvc-site" .dvc/config.local || \
		$(BIN)/dvc config --quiet --local core.site_cache_dir "$(CURDIR)/.dvc-site"

# Of LOCK, if that is said; else with torch's CPU build where pip is offered one, else with CUDA. uv
# installs and compiles on all cores; it reads no settings of pip's, so that it is told where pip looks.
# Sources are built with the locked setuptools, which therefore comes first: what a build needs would
# be fetched without looking at a hash. So does torchvision: of the builds that are offered pip takes
# the best that the lock has a hash of, torch's own CPU build before the registry's, where uv would
# take the former or nothing. Beside the registry's, torchvision is imported by a hook. A lock is
# complete (--no-deps).
$(BIN)/.installed: pyproject.toml pipeline/pyproject.toml requirements.lock requirements-gpu.lock \
		rrcm/inference/torchvision_stub.py
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@set -e; lock="$(LOCK)"; pip="$(BIN)/python -m pip --quiet --disable-pip-version-check"; \
	cpu=$$(sed -n 's/^\(torch==[^ ]*\).*/\1/p' requirements.lock); \
	test -n "$$lock" || lock=requirements.lock; \
	test -n "$(LOCK)" || $$pip install --dry-run --no-deps "$$cpu" 2>/dev/null || \
		lock=requirements-gpu.lock; \
	echo "installing $$lock"; \
	for one in setuptools torchvision uv; do sed -n "/^$$one==/,/[^\\\\]$$/p" $$lock; done | \
		$$pip install --require-hashes --no-deps -r /dev/stdin; \
	of() { $(BIN)/python -m pip config get ":env:.$$1" || $(BIN)/python -m pip config get "global.$$1"; }; \
	links=$$(of find-links 2>/dev/null || true); index=$$(of index-url 2>/dev/null || true); \
	test -z "$$links" || export UV_FIND_LINKS="$$(echo $$links | tr ' ' ,)"; \
	test -z "$$index" || export UV_DEFAULT_INDEX="$$index"; \
	export UV_INDEX="$$(of extra-index-url 2>/dev/null || true)"; \
	uv="$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation"; \
	$$uv --compile-bytecode --require-hashes --index-strategy unsafe-best-match -r $$lock; \
	$$uv --editable . --editable pipeline
	@hook=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/_torchvision_stub; \
	rm -f "$$hook".*; \
	$(BIN)/python -c 'import torchvision' 2>/dev/null || { cp rrcm/inference/torchvision_stub.py "$$hook.py"; \
		echo 'import _torchvision_stub; _torchvision_stub.install()' >"$$hook.pth"; }
	touch $@

# The CPU build comes from where pip finds wheels, or from PyTorch's own index. `make lock UPGRADE=`
# keeps the pins that pyproject.toml still allows.
UPGRADE ?= --upgrade
WHEELS = $(shell $(BIN)/python -m pip config get global.find-links 2>/dev/null)
COMPILE = $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes \
	--no-annotate --no-strip-extras --python-platform x86_64-manylinux_2_28 \
	--custom-compile-command "make lock" $(UPGRADE) --extra dev pyproject.toml

lock: env                 ## pin anew what an environment resolves to, without CUDA and with it
	$(COMPILE) $(if $(WHEELS),--find-links "$(WHEELS)",--torch-backend cpu) -o requirements.lock
	sed -n '/^torch/d; s/^\([a-z].*==[^ ]*\).*/\1/p' requirements.lock | \
		$(COMPILE) --constraint - -o requirements-gpu.lock
	$(BIN)/python .ci/lock.py

audit: env                ## known vulnerabilities of what is locked; 2 if its database is out of reach
	$(BIN)/python .ci/audit.py

data: env                 ## raw data in place, checked against data.dvc
	$(BIN)/rrcm data digits

clean:                    ## the environment and scratch; results stay
	rm -rf .venv .rrcm site
