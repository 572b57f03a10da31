# A newcomer needs `make demo` and `make test`. Everything is installed into .venv.
#
# PYTHON      the interpreter that .venv is made from (default: the first of 3.10 or newer)
# VENV        where the environment goes (default: .venv)
# PYTEST_ARGS further arguments of pytest, for example PYTEST_ARGS="-k cli"
# LAUNCHERS   the launchers whose tests may not be skipped; without pycuda among them, PyCUDA is not built
# GPU_PYTHON    an interpreter that has PyTorch and pytest, for `make test-gpu` (default: that of .venv)
# GPU_ARGS      further arguments of it: GPU_ARGS="--groups 'graphs queues' -- -k batchnorm"
# SEED          what the random cases of `make test-gpu`, `make heldout` and `make measure` are drawn from (default: 0)
# BENCH_PYTHON  an interpreter that has PyTorch, for `make bench` (default: that of .venv)
# BENCH_OUT     the folder of the results (default: bench/results/h200)
# BENCH_ARGS    further arguments of bench/run.py: --ops rmsnorm --dtypes bf16 --budget 300 --missing
# SECONDS       how long `make measure` may take (default: 300)
# KINDS         the classes of calls that `make measure` draws (default: all): KINDS="windows,few rows"
# COUNT         how many calls `make heldout` draws, from SEED (default: 84)
# HELDOUT_ARGS  further arguments of bench/heldout.py: --out heldout.jsonl --budget 300
# NPROC         on how many GPUs `make bench-ranks` runs, a process for each (default: 2)
# RANKS_ARGS    further arguments of bench/ranks.py: --out ranks.jsonl --seconds 300 --calls rmsnorm

VENV ?= .venv
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && echo $$p && break; done)
PYTEST_ARGS ?=
WORKERS ?= auto
LAUNCHERS ?= pycuda cuda-bindings
SEED ?= 0
SECONDS ?= 300
COUNT ?= 84
NPROC ?= 2
KINDS ?=
BENCH_OUT ?= bench/results/h200
BIN := $(VENV)/bin
BENCH = PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} $(or $(BENCH_PYTHON),$(BIN)/python)
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
NOT_INSTALLED := pip could not install the dependencies in pyproject.toml (see above): check the network

PYTORCH_TESTS := tests/torch tests/test_docs.py tests/runtime/test_recorded.py

.PHONY: help demo test test-fast test-kernels test-thorough test-torch test-gpu test-gpus docs test-docs screenshots lint format golden bench bench-ranks heldout measure fit wheel release clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "normgen needs Python 3.10 or newer: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "cannot make $(VENV): on Debian and Ubuntu, install python3-venv"; exit 1; }

# The stamps say what was installed, and from which pyproject.toml.
$(VENV)/.installed: $(BIN)/python pyproject.toml
	@$(INSTALL) -e . || { echo "$(NOT_INSTALLED)"; exit 1; }
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml
	@$(INSTALL) -e '.[dev]' || { echo "$(NOT_INSTALLED)"; exit 1; }
	@touch $@ $(VENV)/.installed

# PyCUDA, built without a driver and, where there is none, without a CUDA toolkit.
$(VENV)/.installed-pycuda: $(VENV)/.installed-dev tools/build_pycuda.py
	@$(BIN)/python -m tools.build_pycuda
	@touch $@

demo: $(VENV)/.installed ## show a spec and its derivative, compile it, and compare its results with float64
	@$(BIN)/python tools/demo.py

READY_TO_TEST := $(VENV)/.installed-dev $(if $(filter pycuda,$(LAUNCHERS)),$(VENV)/.installed-pycuda)
PYTEST = NORMGEN_TEST_LAUNCHERS="$(LAUNCHERS)" $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: $(READY_TO_TEST) ## run the suite, which every change must pass
	$(PYTEST) -m "not thorough and not site" $(PYTEST_ARGS)

test-fast: $(READY_TO_TEST) ## run the part of the suite that compiles no kernels
	$(PYTEST) -m "not thorough and not kernels and not site" $(PYTEST_ARGS)

test-kernels: $(READY_TO_TEST) ## run the rest of the suite
	$(PYTEST) -m "not thorough and kernels" $(PYTEST_ARGS)

test-thorough: $(READY_TO_TEST) ## run tests beyond the suite: more sizes, types, forms and random cases
	$(PYTEST) -m thorough $(PYTEST_ARGS)

# What PyTorch comes with is large, so that it is installed for these tests alone.
$(VENV)/.installed-torch: $(VENV)/.installed-dev
	@$(INSTALL) -e '.[torch,test-torch]' || { echo "$(NOT_INSTALLED)"; exit 1; }
	@touch $@

test-torch: $(VENV)/.installed-torch ## run the tests of normgen.torch; PyTorch's CPU build is enough
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not thorough and not without_torch" $(PYTORCH_TESTS) $(PYTEST_ARGS)

$(VENV)/.installed-gpu: $(VENV)/.installed-torch $(if $(filter pycuda,$(LAUNCHERS)),$(VENV)/.installed-pycuda)
	@touch $@

test-gpu: $(if $(GPU_PYTHON),,$(VENV)/.installed-gpu) ## run the tests that need a GPU, in ten minutes; before every release
	PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} $(or $(GPU_PYTHON),$(BIN)/python) -m tests.gpu.run \
		--launchers "$(LAUNCHERS)" --seed $(SEED) $(GPU_ARGS)

test-gpus: $(if $(GPU_PYTHON),,$(VENV)/.installed-gpu) ## run the tests that need two GPUs
	PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} $(or $(GPU_PYTHON),$(BIN)/python) -m pytest \
		tests/gpu/test_ranks.py tests/torch/test_gpu.py::test_calls_run_where_their_tensors_are $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev ## run ruff, mypy --strict on normgen/, the tape and build_pycuda, and look for functions that are too complex and tests that cannot fail
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	$(BIN)/xenon --max-absolute C normgen tools bench examples
	$(BIN)/python -m tools.weak_tests

format: $(VENV)/.installed-dev ## format the code by ruff
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

golden: $(VENV)/.installed-dev ## regenerate the golden texts; read the difference before you commit it
	$(BIN)/python -m pytest -q --update-golden $(PYTEST_ARGS)

$(VENV)/.installed-docs: $(BIN)/python pyproject.toml
	@$(INSTALL) -e '.[docs]' || { echo "$(NOT_INSTALLED)"; exit 1; }
	@touch $@ $(VENV)/.installed

docs: $(VENV)/.installed-docs ## build the site into site/; a dead link fails
	$(BIN)/python -m tools.docs
	$(BIN)/python -m zensical build --clean --strict

$(VENV)/.installed-test-docs: $(VENV)/.installed-dev
	@$(INSTALL) -e '.[test-docs]' || { echo "$(NOT_INSTALLED)"; exit 1; }
	@touch $@ $(VENV)/.installed-docs

test-docs: $(VENV)/.installed-test-docs ## build the site and read it in a browser (on Debian: apt-get install chromium)
	$(BIN)/python -m pytest tests/docs $(PYTEST_ARGS)

screenshots: docs $(VENV)/.installed-test-docs ## take the screenshots in docs/images/screens
	$(BIN)/python -m tools.docs.screenshots

$(VENV)/.installed-bench: $(BIN)/python pyproject.toml
	@$(INSTALL) -e '.[cuda,torch,bench]'
	@touch $@ $(VENV)/.installed

bench: $(if $(BENCH_PYTHON),,$(VENV)/.installed-bench) ## measure every norm and every peer on this GPU
	$(BENCH) bench/run.py --out $(BENCH_OUT) $(BENCH_ARGS)
	$(BENCH) bench/report.py $(BENCH_OUT) $(if $(filter bench/results/h200,$(BENCH_OUT)),--page docs/performance.md --pictures docs/images)

bench-ranks: $(if $(BENCH_PYTHON),,$(VENV)/.installed-bench) ## measure norms whose axes are sharded over GPUs: make bench-ranks NPROC=2
	$(BENCH) -m torch.distributed.run --standalone --nproc-per-node $(NPROC) bench/ranks.py $(RANKS_ARGS)

heldout: $(if $(BENCH_PYTHON),,$(VENV)/.installed-bench) ## measure random calls of every norm and peer: make heldout SEED=7 COUNT=84
	$(BENCH) bench/heldout.py --seed $(SEED) --count $(COUNT) $(HELDOUT_ARGS)

measure: $(if $(BENCH_PYTHON),,$(VENV)/.installed-bench) ## measure random schedules: make measure SEED=7 SECONDS=300
	$(BENCH) -m bench.measure --seed $(SEED) --seconds $(SECONDS) --kinds "$(KINDS)" \
		--out bench/timings/$(SEED).jsonl

fit: $(VENV)/.installed-dev ## fit the model of time to bench/timings, and cross-validate its choices
	PYTHONPATH=. $(BIN)/python -m bench.fit bench/timings/*.gz
	PYTHONPATH=. $(BIN)/python -m bench.regret --folds 4 bench/timings/*.gz

wheel: $(VENV)/.installed-dev ## build dist/*.whl and dist/*.tar.gz
	$(BIN)/python -m build

release: $(VENV)/.installed-dev ## build and check the files to upload: make release URL=https://forge.example/owner/normgen
	$(BIN)/python -m tools.release "$(URL)"

clean: ## remove build products, including .venv
	rm -rf $(VENV) build dist site .cache demo-output *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
