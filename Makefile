# `make train` and `make test` are all that a fresh machine needs: Python 3.11 or newer and make, nothing else.
PYTHON ?= python3
VENV ?= .venv
CONFIG ?= pbmc.yaml
# More arguments for `grn train` or pytest: make train ARGS="--set trainer.max_epochs=5", make test ARGS="-k laws".
ARGS ?=
# `make train CONSTRAINTS=` takes the newest releases instead, and with them PyPI's CUDA build of torch.
CONSTRAINTS ?= constraints.txt
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Without compiling: Python compiles what is imported, and most of what is installed never is.
INSTALL := $(PIP) install --no-compile
# ... and keeps it: where images forbid that, every process compiles torch, scanpy and Lightning again, for 10 seconds.
unexport PYTHONDONTWRITEBYTECODE
CONSTRAIN := $(if $(CONSTRAINTS),-c $(CONSTRAINTS))
# Several test processes with a thread pool each would fight for the same cores. Numba (under decoupler and scanpy) sets
# the number of threads of torch, too, once it runs.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1
# Each process takes a half of the files in their order, so that what a file sets up is set up once; one that is done
# takes from the end of the other's.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

.PHONY: train test test-oldest test-newest test-numerics lint lock notebooks gallery docs wheel install install-dev clean
.DELETE_ON_ERROR:

train: install
	$(BIN)/grn train --config $(CONFIG) $(ARGS)

test: install-dev
	$(ONE_THREAD) $(PYTEST) $(ARGS)

# The ends of the ranges of pyproject.toml, each in an environment of its own.
test-oldest: dist/oldest.txt
	$(MAKE) test VENV=.venv-oldest CONSTRAINTS=$<

test-newest:
	$(MAKE) test VENV=.venv-newest CONSTRAINTS=

dist/oldest.txt: pyproject.toml .ci/oldest.py
	@mkdir -p dist
	@$(PYTHON) .ci/oldest.py >$@

# What compares floats, again with other instruction sets than the processor's own choice: their order of sums differs.
# Left out: compilers, caches, processes, counts of bytes and file formats, which have no bars of their own, and most of
# the kernels' tests: blocks fix the order of sums there, and ill-conditioned rows, whose bars are narrow, stay in.
NUMERICAL_TESTS := tests/flashsign tests/model tests/edges tests/evidence tests/networks \
  $(addprefix --ignore=tests/flashsign/,tuning operators test_public.py attention/test_dispatch.py) \
  --ignore=tests/flashsign/tables/test_table_kernels.py \
  $(addprefix --ignore-glob=*/,test_memory.py test_saved.py test_formats.py test_file_formats.py) \
  -k 'not triton_'
# OpenBLAS does as it is told, so its AVX-512 code is asked for only where the processor has AVX-512.
CORE := $(shell grep -qs avx512f /proc/cpuinfo && echo SkylakeX || echo Haswell)

# .ci/run takes the one that is farther from most processors' own choice.
SETTINGS ?= avx2 plain
SETTING_avx2 := OPENBLAS_CORETYPE=$(CORE) ATEN_CPU_CAPABILITY=avx2
SETTING_plain := OPENBLAS_CORETYPE=Sandybridge ATEN_CPU_CAPABILITY=default
NUMERICS := $(addprefix numerics-,$(SETTINGS))

test-numerics: $(NUMERICS)
.PHONY: $(NUMERICS)

$(NUMERICS): numerics-%: install-dev
	@echo "numerical tests with $(SETTING_$*)"
	@env $(SETTING_$*) $(ONE_THREAD) $(PYTEST) $(NUMERICAL_TESTS) $(ARGS)

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy --strict grn kernels/flashsign

lock: install
	$(BIN)/python .ci/lock.py

notebooks: install-dev
	$(ONE_THREAD) $(BIN)/python notebooks/execute.py --workers $(WORKERS)

# Every picture of docs/gallery.md.
GALLERY ?= docs/img/gallery
gallery: install-dev
	$(BIN)/python docs/gallery.py $(GALLERY)

# The documentation as a site; a warning is an error.
docs: install-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --site-dir dist/site

wheel: install-dev
	$(BIN)/python -m build --no-isolation --outdir dist .

install: $(VENV)/installed

install-dev: $(VENV)/installed-dev

# The stamps are as new as what they installed, so a second call installs nothing.
$(VENV)/installed: pyproject.toml $(CONSTRAINTS) | $(VENV)/torch
	@echo "installing grn into $(VENV) ..."
	@$(INSTALL) $(CONSTRAIN) -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml $(CONSTRAINTS) | $(VENV)/torch $(VENV)/beside-torch
	@echo "installing grn and its development tools into $(VENV) ..."
	@$(INSTALL) $(CONSTRAIN) -e ".[dev]"
	@touch $(VENV)/installed $@

# torch comes first and alone: only this one look-up may ask PyTorch's own index, which knows no other package of ours.
$(VENV)/torch: | $(VENV)/bin/python
	@echo "installing torch into $(VENV) ..."
	@$(INSTALL) --no-deps $(if $(CONSTRAINTS),--retries 1 --extra-index-url $(TORCH_INDEX)) $(CONSTRAIN) torch
	@touch $@

# What is large and does not need torch, which `make -j2` therefore unpacks beside it. Without constraints torch chooses
# the release of Triton.
$(VENV)/beside-torch: | $(VENV)/bin/python
	@$(INSTALL) --no-warn-conflicts $(CONSTRAIN) decoupler $(if $(CONSTRAINTS),'triton; platform_system == "Linux"')
	@touch $@

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "error: $(PYTHON) was not found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: grn needs Python 3.11 or newer and $(PYTHON) is $$($(PYTHON) --version 2>&1); name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "error: $(PYTHON) could not make a virtual environment; on Debian and Ubuntu install python3-venv" >&2; exit 1; }

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find grn kernels tests -name __pycache__ -type d -prune -exec rm -rf {} +
