# `make demo` and `make test` set everything up on a fresh machine; nothing else is needed first.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
FEW    := $(VENV)/.installed-demo
STAMP  := $(VENV)/.installed
EXTRAS := demo,cpu-kernels,plot,dev,docs,mteb,faiss,search,onnx,openvino,peft,tensorboard
PINS   := constraints.txt
BENCH  := $(VENV)/.installed-bench
OUT    ?= demo
JOBS   ?= 2
TESTS  ?= tests
# Worksteal deals the tests in two runs of files, and a worker that is done takes from the other.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(TESTS)

.PHONY: demo test test-all test-lowest test-pythons soak check format bench mutants binary wheel docs site clean help

help:            ## show the targets
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  \1\t/'

# The demo compiles a module when it is first imported: compiling all took half of the installation. Tests need all compiled,
# since warnings are errors in them, and compiling some packages warns.
$(FEW): pyproject.toml $(PINS)
	@echo "installing simcse, PyTorch and the demo's model into $(VENV): about 70 packages, 1.9 GB, a minute or two"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile -c $(PINS) torch -e '.[demo,cpu-kernels,plot]'
	touch $@

$(STAMP): $(FEW)
	@echo "installing what tests, types, docs and peers need besides: about 60 packages, 0.9 GB"
	$(BIN)/python -m pip install -q --no-compile -c $(PINS) -e '.[$(EXTRAS)]'
	$(BIN)/python -W ignore -m compileall -q -j 0 $(VENV)/lib > $(VENV)/compileall.log 2>&1 || true
	touch $@

demo: $(FEW)     ## the main job on a generated corpus: prepare, train, eval, encode, analyze
	PYTHONDONTWRITEBYTECODE= PATH="$(CURDIR)/$(BIN):$$PATH" bash recipes/demo.sh $(OUT)

test: $(STAMP)   ## the tests of the code
	$(PYTEST) -m 'not upkeep'

test-all: $(STAMP) ## these, and the slow checks of docs, site, binary, recipes, graphs and soak suite
	$(PYTEST)

LOWEST := .venv-lowest
test-lowest:     ## all tests, with the lowest versions that pyproject.toml allows; TORCH=2.13.0 keeps that torch
	mkdir -p $(LOWEST)
	grep -oE '"[a-z0-9-]+(\[[a-z]+\])?>=[^",]+' pyproject.toml | sed 's/"//; s/\[.*]//; s/>=/==/; $(if $(TORCH),s/^torch==.*/torch==$(TORCH)/)' \
	  > $(LOWEST)/pins.txt
	$(MAKE) test-all VENV=$(LOWEST) PINS=$(LOWEST)/pins.txt

test-pythons:    ## all tests on other versions of Python, where there is one: PYTHONS="python3.13 python3.14"
	@for python in $(or $(PYTHONS),python3.12 python3.13 python3.14); do \
	  if command -v $$python > /dev/null; then $(MAKE) test PYTHON=$$python VENV=.venv-$$python || exit 1; \
	  else echo "$$python: not on this machine, not tested"; fi; \
	done

soak: $(STAMP)   ## kill, fail, damage and attack the commands for SECONDS=600 with SEED=0
	$(BIN)/python tools/soak --seconds $(or $(SECONDS),600) --seed $(or $(SEED),0)

check: $(STAMP)  ## format, lint, types on each system, tests
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/python tools/density
	for system in linux darwin win32; do $(BIN)/mypy --platform $$system --cache-dir .mypy_cache/$$system || exit 1; done
	$(PYTEST)

format: $(STAMP) ## format the code
	$(BIN)/ruff format src tests benchmarks tools
	$(BIN)/ruff check --fix src tests benchmarks tools

$(BENCH): $(STAMP)
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -e '.[$(EXTRAS),bench]'
	touch $@

bench: $(BENCH)  ## speed against the peers (needs SIMCSE_DATA or ../shared/data); DEVICE=cuda on a GPU
	$(BIN)/python benchmarks/run.py --device $(or $(DEVICE),cpu)

mutants: $(STAMP) ## change the code in one place at a time: do the tests notice? (hours; MODULES=... for some, or --survivors)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/python tools/mutants $(MODULES)

wheel: $(STAMP)  ## build dist/*.whl
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt build
	$(BIN)/python -m build -q --wheel

binary: wheel    ## build dist/simcse, one file that needs no Python (gcc, 5 minutes), and try it
	$(BIN)/python tools/binary/build.py "$$(ls dist/simcse_cli-*.whl | tail -1)" dist/simcse
	$(BIN)/python tools/binary/try.py dist/simcse

docs: $(STAMP)   ## write docs/cli.md, docs/simcse.1 and tests/surface.txt from the commands
	$(BIN)/python docs/make_cli_reference.py
	$(BIN)/python tests/surface.py > tests/surface.txt

site: $(STAMP)   ## the documentation as a site in site/, which reads and searches without a network
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --clean -q

clean:           ## remove what was built
	rm -rf $(VENV) .venv-* dist build demo site
