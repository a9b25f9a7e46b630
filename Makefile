# The few commands. Each makes the virtual environment it needs, starts what it needs and stops it again.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python

.PHONY: demo test style types floors proto lock bench bench-kafka simulate mutations chaos crashes clean

demo: $(VENV)/.ready          ## the main job, end to end, with two kills on the way
	$(BIN)/python -m benchmarks.demo

test: style types floors      ## everything that must hold
	$(BIN)/python -m pytest

style: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

floors: $(VENV)/.ready
	$(BIN)/lint-imports

bench: $(VENV)/.ready         ## measured figures beside their ceilings
	$(BIN)/python -m benchmarks.bench

bench-kafka: $(VENV)/.ready   ## the same beside Apache Kafka and other brokers, which are fetched (Maven, pip, apt)
	$(BIN)/python -m benchmarks.kafka

SEEDS ?= 1000
simulate: $(VENV)/.ready      ## whole clusters in virtual time: make simulate SEEDS=n
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --processes 2 $(if $(PROFILE),--profile $(PROFILE))

COUNTED ?= 10
mutations: $(VENV)/.ready     ## plant every fault, see that the simulator finds it, and put the counts into its README
	$(BIN)/python -m tests.simulation.mutations --processes 2 --seeds $(COUNTED) --table tests/simulation/README.md

MINUTES ?= 5
chaos: $(VENV)/.ready         ## real processes under fire, judged: make chaos MINUTES=n
	$(BIN)/python -m tests.chaos --minutes $(MINUTES)

CRASHES ?= 200
SEED ?= 1
crashes: $(VENV)/.ready       ## exactly once, under so many crashes: make crashes CRASHES=n SEED=m
	$(BIN)/python -m tests.spark.crashes --crashes $(CRASHES) --seed $(SEED) --table tests/spark/CRASHES.md

proto: $(VENV)/.ready         ## generate the protobuf code anew (tests check that it is current)
	cd src && PATH="$(CURDIR)/$(BIN):$$PATH" ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --mypy_out=. mq_protocol/mq.proto

lock:                         ## pin every dependency anew
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip -q install pip-tools
	.venv-lock/bin/pip-compile -q --extra spark --extra demo --extra dev --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header -o requirements.lock pyproject.toml
	rm -rf .venv-lock

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip -q install --require-hashes -r requirements.lock
	$(BIN)/python -m pip -q install --no-deps -e .
	touch $@

clean:
	rm -rf $(VENV) .venv-lock build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
