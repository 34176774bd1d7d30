# make compare   set up .venv and run the main job on real data
# make test      set up .venv and run every check

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUN    := TF_CPP_MIN_LOG_LEVEL=3 GLOG_v=3

# Suites that run at once, each on one thread: two of them share two cores well.
JOBS   ?= 2
# The longest first.
SUITES := backend-mindspore backend-tensorflow backend-torch face-mindspore face-tensorflow \
          face-torch porter backend-numpy

.PHONY: compare test setup lint types unit conformance slow packaging docs benchmark clean $(SUITES)

compare: setup
	$(BIN)/mpcore compare examples/image_cnn/experiment.py $(ARGS)

test: setup lint types unit conformance slow packaging

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "setting up $(VENV): three frameworks, about 2.5 GB; once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev]"
	@touch $@

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache --quiet

types: setup
	$(BIN)/mypy

unit: setup
	$(RUN) $(BIN)/python -m pytest --doctest-modules mpcore tests/core tests/tools -m "not slow"

# One process a framework: their states must not meet.
conformance: setup
	$(MAKE) --no-print-directory -j$(JOBS) --output-sync=target $(SUITES)

$(filter backend-%,$(SUITES)): backend-%: setup
	@echo "== $*: its adapter"
	OMP_NUM_THREADS=1 $(RUN) $(BIN)/python -m pytest -p no:cacheprovider \
	  tests/backends tests/ranks tests/zoo tests/divergence --backend $*

$(filter face-%,$(SUITES)): face-%: setup
	@echo "== $*: faces of its natives"
	OMP_NUM_THREADS=1 $(RUN) $(BIN)/python -m pytest -p no:cacheprovider tests/compat --backend $*

porter: setup
	@echo "== the porter"
	OMP_NUM_THREADS=1 $(RUN) $(BIN)/python -m pytest -p no:cacheprovider tests/port

slow: setup
	$(RUN) $(BIN)/python -m pytest tests/tools tests/examples -m slow

packaging: setup
	$(RUN) $(BIN)/python -m pytest tests/packaging

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
	rm -rf $(VENV) compare-report dist site
