SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo serve test check fmt protos protos-check bench bench-regress figures chaos fuzz large overload streams feed ladder decode gpu-decode decoder peers parity without-grpc wheel clean

# An environment that holds the dependencies already: used instead of .venv, and nothing is installed.
WARMLANE_PYTHON ?=
# A package index to take torch and torchvision from, such as one with CPU-only builds.
TORCH_INDEX ?=
# Arguments: make serve ARGS='--port 9000', make bench ARGS='--callers 32 -- --threads 2', make test ARGS='-k decode'
ARGS ?=

ifdef WARMLANE_PYTHON
READY :=
PYTHON := $(WARMLANE_PYTHON)
export PYTHONPATH := $(CURDIR)/protos:$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
else
READY := .venv/.installed
PYTHON := .venv/bin/python
BASE_PYTHON ?= $(shell for python in python3 python3.12 python3.11 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
endif

PROTOS := $(addprefix protos/warmlane/v1/,classifier.proto admin.proto)
GENERATED := $(foreach name,classifier admin,$(name)_pb2.py $(name)_pb2.pyi $(name)_pb2_grpc.py)
# Where google/rpc/status.proto lies.
GOOGLE_PROTOS = $$($(PYTHON) -c 'import google.rpc.status_pb2 as s, pathlib; print(pathlib.Path(s.__file__).parents[2])')
GENERATE = $(PYTHON) -m grpc_tools.protoc -I protos -I "$(GOOGLE_PROTOS)" \
	--python_out=$(1) --pyi_out=$(1) --grpc_python_out=$(1) $(PROTOS)

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

demo: $(READY)  ## Start the server, classify the photographs in bench/images, stop.
	@$(PYTHON) -m bench.demo

serve: $(READY)  ## Run the server until Ctrl-C; ARGS='--port 9000' sets settings.
	@$(PYTHON) -m server $(ARGS)

test: $(READY)  ## Run the test suite.
	$(PYTHON) -m pytest $(ARGS)

check: $(READY) protos-check  ## Lint, format, types, layers, generated code.
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -c 'from importlinter.cli import lint_imports_command as lint; lint()'

fmt: $(READY)  ## Format the code, and fix what can be fixed.
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

protos: $(READY)  ## Generate the stubs from the contract.
	$(call GENERATE,protos)

protos-check: $(READY)  ## Fail if the stubs are not what the contract gives.
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(call GENERATE,"$$fresh") && \
	for file in $(GENERATED); do \
		diff -u protos/warmlane/v1/$$file "$$fresh/warmlane/v1/$$file" || { echo 'run: make protos' >&2; exit 1; }; \
	done && echo 'the generated code is up to date'

bench: $(READY)  ## Load test and its report; the last line is JSON. ARGS='--scenario single', ARGS='--help'.
	@$(PYTHON) -m bench.load $(ARGS)

bench-regress: $(READY)  ## Fail if the service is over 10 % slower than recorded; ARGS=--record records it anew.
	@$(PYTHON) -m bench.regress $(ARGS)

figures: $(READY)  ## Measure the service against its targets, some minutes; the last line is JSON.
	@$(PYTHON) -m bench.figures $(ARGS)

# Seconds of strikes.
CHAOS_S ?= 300

chaos: $(READY)  ## Mixed calls while processes are killed: CHAOS_S=300, ARGS='--frontends 0' kills nothing.
	@$(PYTHON) -m bench.chaos --seconds $(CHAOS_S) $(ARGS)

# Seconds of fuzzing.
FUZZ_S ?= 600

fuzz: $(READY)  ## Mutated files through sniff, header and decode, guided by coverage: FUZZ_S=600, ARGS=FILE repeats a finding.
	@$(PYTHON) -m tests.fuzz --seconds $(FUZZ_S) $(ARGS)

large: $(READY)  ## 64 images of 49 megapixels at once: memory, and what callers of small ones notice.
	@$(PYTHON) -m bench.large_images $(ARGS)

overload: $(READY)  ## Twice as many calls as can be served, for a minute.
	@$(PYTHON) -m bench.overload $(ARGS)

streams: $(READY)  ## What an image costs a frontend in a stream, against a call of its own.
	@$(PYTHON) -m bench.streams $(ARGS)

feed: $(READY)  ## Random tensors straight into the served model: its ceiling; ARGS='--model resnet50 --weights none'.
	@$(PYTHON) -m bench.feed $(ARGS)

ladder: $(READY)  ## A starved GPU, cured rung by rung; ARGS='--models resnet50'.
	@$(PYTHON) -m bench.ladder $(ARGS)

gpu-decode: $(READY)  ## JPEGs decoded by a GPU, beside the libraries, and the whole way in one process.
	@$(PYTHON) -m bench.gpu_decode $(ARGS)

decode: $(READY)  ## JPEG decode on one core, beside the libraries' bare decode; pip install '.[decoders]' for all of them.
	@$(PYTHON) -m bench.decode $(ARGS)

decoder: $(READY)  ## Text generation by a 135 M-parameter decoder, cured rung by rung; ARGS='--rungs 0,4,6'.
	@$(PYTHON) -m bench.decoder $(ARGS)

peers: $(READY)  ## LitServe, mosec, Ray Serve, BentoML and PyTriton beside this server; ARGS='--peers warmlane,mosec'.
	@$(PYTHON) -m bench.peers $(ARGS)

without-grpc: $(READY)  ## What the service could answer if gRPC cost nothing; ARGS='--feeders 8 -- --model resnet50 --weights none'.
	@$(PYTHON) -m bench.without_grpc $(ARGS)

parity: $(READY)  ## The transforms against torchvision, and each dtype against fp32.
	@$(PYTHON) -m bench.parity $(ARGS)

wheel: $(READY)  ## Build the wheel into dist/.
	rm -rf dist
	$(PYTHON) -m build --wheel

clean:  ## Remove what was built and cached here; .venv stays.
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

.venv/.installed: pyproject.toml
	@test -n '$(BASE_PYTHON)' || { echo 'no Python 3.11 or later found: install one, or say make BASE_PYTHON=...' >&2; exit 1; }
	@echo 'Installing into .venv: the first time this takes some minutes, and torch is large.'
	$(BASE_PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),.venv/bin/python -m pip install --index-url '$(TORCH_INDEX)' 'torch>=2.11' 'torchvision>=0.26')
	.venv/bin/python -m pip install -e '.[server,bench,dev]'
	@touch $@
