# make compare   set up .venv and run the main job on real data
# make check     lint, types, the core, one framework: under 3 minutes, for every change
# make test      set up .venv and run every suite, two at a time; the dear tests by shares
# make facts     every fact of the porter for MindSpore, run against torch
# make hosts     the suite beside Lightning, Accelerate and transformers, in .venv-hosts
# make jax       the suite of the JAX backend, in .venv-jax
# make seconds   cut the parts of suites anew, by what the last `make test` measured
# make notebooks run the example notebooks, and keep what they print
# make device    the device suite and its campaign on this machine's accelerator
# make matrix    other versions of Python, numpy and the frameworks, each in its own environment
# make nightly   every test, with full products and long runs (docs/testing.md)

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := TF_CPP_MIN_LOG_LEVEL=3 GLOG_v=3

# Suites that run at once, each on one thread: two of them share two cores well.
JOBS   ?= 2
LOGS   := build/suites
# Of dear tests, `make test` runs a day's share, `make nightly` everything (docs/testing.md).
SHARE   = --by-day
PYTEST  = -m pytest -p no:cacheprovider --measure $(LOGS)/$@.tests.json $(SHARE) $(ARGS)
TEST    = OMP_NUM_THREADS=1 $(RUN) $(BIN)/python $(PYTEST)
# Lightning, Accelerate, transformers and what tests of them need, on top of $(VENV), which stays
# as it is. They bring no torch of their own. timm, and torchvision, which it imports, lie apart:
# torchvision from an index is built for CUDA and breaks whoever finds it beside a CPU build.
HOSTS  := .venv-hosts
# JAX wants numpy 2, MindSpore numpy 1: JAX's environment finds its own first, then $(VENV)'s.
JAX    := .venv-jax
# One process a framework: their states must not meet. The longest first, so that none is left
# alone at the end; "2of2" is the second of two parts.
SUITES := backends-tensorflow backends-mindspore-1of2 backends-mindspore-2of2 backends-torch \
          porter-1of2 porter-2of2 slow unit hosts packaging jax compat-mindspore \
          compat-tensorflow device-dry compat-torch types backends-numpy lint
CHECKS := unit-1of2 unit-2of2 types smoke lint

.PHONY: compare test check facts seconds device matrix notebooks nightly setup docs benchmark clean $(SUITES) $(CHECKS)

compare: setup
	$(BIN)/mpcore compare examples/image_cnn/experiment.py $(ARGS)

# Every suite runs, also after one has failed; the table at the end names those that did.
test: setup
	@rm -rf $(LOGS)
	@$(MAKE) --no-print-directory --keep-going -j$(JOBS) $(SUITES) || true
	@$(BIN)/python tests/suites.py summary $(LOGS) $(SUITES)

check: setup
	@rm -rf $(LOGS)
	@$(MAKE) --no-print-directory --keep-going -j$(JOBS) $(CHECKS) || true
	@$(BIN)/python tests/suites.py summary $(LOGS) $(CHECKS)

seconds:
	$(BIN)/python tests/suites.py seconds $(LOGS)

nightly:
	@$(MAKE) --no-print-directory test SHARE=--nightly

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "setting up $(VENV): three frameworks, about 2.5 GB; once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev]"
	@touch $@

$(HOSTS)/.ready: $(VENV)/.ready
	@echo "setting up $(HOSTS): host libraries beside $(VENV), about 300 MB; once"
	@rm -rf $(HOSTS)
	$(PYTHON) -m venv $(HOSTS)
	@echo "import site; site.addsitedir('$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')')" \
	  > $$($(HOSTS)/bin/python -c 'import site; print(site.getsitepackages()[0])')/_beside.pth
	$(HOSTS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt \
	  -e ".[lightning,accelerate,transformers]" peft torchao
	$(HOSTS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps \
	  --target $(HOSTS)/vision timm torchvision
	@touch $@

$(JAX)/.ready: $(VENV)/.ready
	@echo "setting up $(JAX): JAX, flax and optax with numpy 2, about 600 MB; once"
	@rm -rf $(JAX)
	$(PYTHON) -m venv $(JAX)
	$(JAX)/bin/pip install --quiet --disable-pip-version-check -c tests/jax/constraints.txt \
	  -e ".[jax]" hypothesis pytest
	@touch $@

suite = @$(BIN)/python tests/suites.py run $(LOGS) $@
# Of a name as backends-mindspore-2of2: the framework, and the part as pytest takes it.
second = $(word 2,$(subst -, ,$@))
shard  = $(if $(findstring of,$@),--shard $(subst of,/,$(lastword $(subst -, ,$@))))

lint: setup
	$(suite) sh -c "$(BIN)/ruff format --check . && $(BIN)/ruff check . && \
	  $(BIN)/lint-imports --no-cache"

types: setup
	$(suite) $(BIN)/mypy

$(filter unit%,$(SUITES) $(CHECKS)): setup
	$(suite) env $(TEST) --doctest-modules mpcore tests/core tests/tools -m "not slow" $(shard)

# What a change breaks first: one framework's conformance.
smoke: setup
	$(suite) env $(TEST) tests/backends/test_conformance.py --backend torch

$(filter backends-%,$(SUITES)): setup
	$(suite) env $(TEST) tests/backends tests/borders tests/ranks tests/zoo tests/divergence \
	  --backend $(second) $(shard)

$(filter compat-%,$(SUITES)): setup
	$(suite) env $(TEST) tests/compat --backend $(second)

hosts: setup $(HOSTS)/.ready
	$(suite) env OMP_NUM_THREADS=1 $(RUN) $(HOSTS)/bin/python $(PYTEST) tests/hosts --hosts

jax: setup $(JAX)/.ready
	$(suite) env OMP_NUM_THREADS=1 JAX_PLATFORMS=cpu $(JAX)/bin/python $(PYTEST) tests/jax

$(filter porter-%,$(SUITES)): setup
	$(suite) env $(TEST) tests/port tests/facts $(shard)

# Every fact of the porter's MindSpore tables against torch, about ten minutes; writes nothing.
facts: setup
	env OMP_NUM_THREADS=1 $(RUN) $(BIN)/python -W ignore tests/facts/fact_all.py $(ARGS)

# A simulated device: its conformance runs in `make device`, the CPU's in backends-torch.
device-dry: setup
	$(suite) env MPCORE_DEVICE=simulated PATH="$(CURDIR)/$(BIN):$$PATH" $(TEST) tests/device \
	  --backend torch -k "not conformance and not transaction"

device: SHARE =
device: setup
	env $(TEST) tests/device --backend torch
	$(BIN)/python tests/device/campaign.py $(ARGS)

# Several GB of downloads, hours on two cores; rows go to docs/versions.md as they are known.
matrix: setup
	$(BIN)/python tests/matrix/matrix.py $(ARGS)

notebooks: setup
	env OMP_NUM_THREADS=1 $(RUN) $(BIN)/python tests/examples/notebooks.py examples/notebooks/*.ipynb

slow: setup
	$(suite) env $(TEST) tests/tools tests/examples -m slow

packaging: setup
	$(suite) env $(TEST) tests/packaging tests/mutation tests/processes

# The site, into site/; a dead link fails.
docs: setup
	@$(BIN)/python -c "import mkdocstrings, material" 2> /dev/null || \
	  $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	$(BIN)/mkdocs build --quiet --strict

benchmark: setup
	for framework in torch tensorflow mindspore; do \
	  $(RUN) $(BIN)/python tests/benchmarks/step_overhead.py $$framework || exit 1; done
	$(RUN) $(BIN)/python tests/benchmarks/scaler_overhead.py

clean:
	rm -rf $(VENV) $(HOSTS) $(JAX) build compare-report dist site
