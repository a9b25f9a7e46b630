# The few commands. Each makes the virtual environment it needs, starts what it needs and stops it again.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
QUICK_SPARK := $(VENV)/quick-spark/ready
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
# Tests start hundreds of Python processes. What the first of them compiled the others load, whatever the caller's environment says.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test long test-secure secure-table quick tests quick-tests compiled checks style types floors docs dist sbom audit-packages versions proto lock monitoring alerts quiet tutorial browser go go-proto bench bench-queues bench-kafka simulate simulate-brokers mutations bounds mutants chaos rolling crashes clean bench-security bench-operations rotation fuzz

demo: $(VENV)/.ready          ## the main job, end to end, with two kills on the way
	$(BIN)/python -m benchmarks.demo

SIDE_BY_SIDE ?= 6
test: $(VENV)/.ready          ## everything that must hold; most tests wait for processes, so several run side by side
	$(MAKE) -j 2 --no-print-directory $(QUICK_SPARK) compiled
	$(MAKE) -j 2 --no-print-directory tests checks

quick: $(VENV)/.ready         ## a quick answer: everything that starts no broker, no ZooKeeper and no Spark, with few seeds and sizes
	$(MAKE) -j 2 --no-print-directory floors style types quick-tests

tests: $(VENV)/.ready compiled $(QUICK_SPARK)
	$(BIN)/python -m pytest -n $(SIDE_BY_SIDE) --dist loadgroup --no-loadscope-reorder -m "not long"

long: $(VENV)/.ready compiled $(QUICK_SPARK) ## what takes minutes of real time, and so is not part of `make test`; a release runs it (tests/RUNS.md)
	$(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder -m long

quick-tests: $(VENV)/.ready compiled
	$(BIN)/python -m pytest -n $(SIDE_BY_SIDE) --dist load -m "not processes and not long"

# A start of Spark costs half of the processor time with it, and the tests start a dozen.
$(QUICK_SPARK): $(VENV)/.ready tests/spark/quick_start.py tests/spark/warming.py
	-@$(BIN)/python -m tests.spark.quick_start

test-secure: $(VENV)/.ready compiled $(QUICK_SPARK) ## every test that starts brokers, over TLS and with rights (tests/switch.py)
	TRITONMQ_TEST_SECURE=1 $(BIN)/python -m pytest -n $(SIDE_BY_SIDE) --dist loadgroup --no-loadscope-reorder

secure-table: $(VENV)/.ready compiled $(QUICK_SPARK) ## the same tests without it and with it, and the table in tests/SECURE.md
	-TRITONMQ_TEST_SECURE=0 $(BIN)/python -m pytest -n $(SIDE_BY_SIDE) --dist loadgroup --no-loadscope-reorder --junitxml=build/secure-0.xml
	-TRITONMQ_TEST_SECURE=1 $(BIN)/python -m pytest -n $(SIDE_BY_SIDE) --dist loadgroup --no-loadscope-reorder --junitxml=build/secure-1.xml
	$(BIN)/python -m tests.switch_table --off build/secure-0.xml --on build/secure-1.xml --table tests/SECURE.md

compiled: $(VENV)/.ready      ## once, what each of the processes that run side by side would compile for itself
	@test -d tests/__pycache__ || $(BIN)/python -m pytest --collect-only -qq >/dev/null || true

checks: floors style types

style: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.ready
	$(BIN)/mypy

floors: $(VENV)/.ready
	$(BIN)/lint-imports

docs: $(VENV)/.ready          ## the documentation as a site, in build/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q
	@echo "build/site/index.html; search needs a server: python -m http.server -d build/site"

dist: $(VENV)/.ready          ## build the wheel and the source distribution, and try both in fresh environments
	$(BIN)/python -m release.dist

sbom: $(VENV)/.ready          ## a CycloneDX document of what `pip install tritonmq[security]` brings along, in dist/
	$(BIN)/python -m release.supply sbom

audit-packages: $(VENV)/.ready ## fail if a package that brokers load has a known hole; release/exceptions.toml lists those passed over
	$(BIN)/python -m release.supply audit

versions: $(VENV)/.ready      ## the Python and PySpark versions that work, each tried in a fresh environment; writes docs/versions.md
	$(BIN)/python -m release.versions

bench: $(VENV)/.ready         ## measured figures beside their ceilings
	$(BIN)/python -m benchmarks.bench

ROUNDS ?= 3
bench-queues: $(VENV)/.ready  ## work queues, every record counted: make bench-queues ROWS=batched,jobs ROUNDS=n
	$(BIN)/python -m benchmarks.queues --rounds $(ROUNDS) $(if $(ROWS),--rows $(ROWS))

bench-security: $(VENV)/.ready ## what TLS and rights cost, and what strangers and attackers do to a broker; writes benchmarks/SECURITY.md
	$(BIN)/python -m benchmarks.security

bench-operations: $(VENV)/.ready ## what it costs to be watched, with ten thousand idle partitions; writes benchmarks/OPERATIONS.md
	$(BIN)/python -m benchmarks.operations

bench-kafka: $(VENV)/.ready   ## the same beside Apache Kafka and other brokers, which are fetched (Maven, pip, apt)
	$(BIN)/python -m benchmarks.kafka

SEEDS ?= 1000
simulate: $(VENV)/.ready      ## whole clusters in virtual time: make simulate SEEDS=n
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --processes 2 $(if $(PROFILE),--profile $(PROFILE))

simulate-brokers: $(VENV)/.ready ## real brokers in virtual time: make simulate-brokers SEEDS=n
	$(BIN)/python -m tests.simulation.real --seeds $(SEEDS) --processes 2

COUNTED ?= 10
mutations: $(VENV)/.ready     ## plant every fault, see that the simulator finds it, and put the counts into its README
	$(BIN)/python -m tests.simulation.mutations --processes 2 --seeds $(COUNTED) --table tests/simulation/README.md

bounds: $(VENV)/.ready        ## what members of a queue that mean harm make its leader keep, at full size
	$(BIN)/python -m tests.bounds --table tests/bounds/README.md

SAMPLE ?= 1
mutants: $(VENV)/.ready       ## change the product in one place at a time, and see that a test fails: make mutants SAMPLE=10 tries one of ten
	$(BIN)/python -m tests.mutants --sample $(SAMPLE) --table tests/mutants/README.md

MINUTES ?= 5
chaos: $(VENV)/.ready         ## real processes under fire, judged: make chaos MINUTES=n
	$(BIN)/python -m tests.chaos --minutes $(MINUTES)

rolling: $(VENV)/.ready       ## a cluster under load is restarted as by Kubernetes, with a Spark query
	TRITONMQ_ROLL=1 $(BIN)/python -m pytest tests/cluster/test_rolling_restart.py

rotation: $(VENV)/.ready      ## certificates and authorities are replaced under load for so long: make rotation MINUTES=n
	TRITONMQ_ROTATION_MINUTES=$(MINUTES) $(BIN)/python -m pytest tests/cluster/test_secure_cluster.py -k under_load

CRASHES ?= 200
SEED ?= 1
crashes: $(VENV)/.ready $(QUICK_SPARK) ## exactly once, under so many crashes: make crashes CRASHES=n SEED=m
	$(BIN)/python -m tests.spark.crashes --crashes $(CRASHES) --seed $(SEED) --table tests/spark/CRASHES.md

TARGET ?= all
fuzz: $(VENV)/.ready build/atheris/.ready ## random and altered input for all that reads a stranger's, MINUTES for each target; what fails goes into tests/fuzz/corpus
	$(BIN)/python -m tests.fuzz $(TARGET) --minutes $(MINUTES)
	if test -d build/atheris/atheris; then PYTHONPATH=build/atheris $(BIN)/python -m tests.fuzz $(TARGET) --minutes $(MINUTES) --guided; fi
	$(BIN)/python -m tests.fuzz.brokers --minutes $(MINUTES)

# Atheris is a tool of this target alone. There are wheels of it for Linux and some versions of Python: without one the guided runs are left out.
build/atheris/.ready: $(VENV)/.ready
	mkdir -p build/atheris
	-$(BIN)/python -m pip -q install --no-deps --only-binary :all: --target build/atheris "atheris==3.0.0"
	touch $@

# The Python code is generated by the oldest protoc whose runtime pyproject.toml admits: protobuf refuses code that is newer than itself.
PROTOC := .venv-proto
proto: $(VENV)/.ready $(PROTOC)/.ready   ## generate the protobuf code anew (tests check that it is current)
	cd src && ../$(PROTOC)/bin/python -m grpc_tools.protoc -I. --python_out=. mq_protocol/mq.proto
	cd src && PATH="$(CURDIR)/$(BIN):$$PATH" ../$(BIN)/python -m grpc_tools.protoc -I. --mypy_out=. mq_protocol/mq.proto

$(PROTOC)/.ready:
	$(PYTHON) -m venv $(PROTOC)
	$(PROTOC)/bin/python -m pip -q install "grpcio-tools==1.72.2" "protobuf==6.30.2" "setuptools<81"
	touch $@

GO ?= $(or $(shell command -v go),/usr/local/go/bin/go)
GO_CLIENT := clients/go
# As tests/clients/conftest.py has them. To compile is most of what `make go` costs, so all is compiled in one way, and no compiler collects garbage.
GO_COMPILES := GOGC=off GOMEMLIMIT=1500MiB
GO_FLAGS := $(if $(filter 0,$(TRITONMQ_GO_RACE)),,-race) -gcflags=all=-dwarf=false -ldflags=-w
go: $(VENV)/.ready            ## the Go client: format, vet, its tests with the race detector, and beside Python at a real cluster
	cd $(GO_CLIENT) && test -z "$$($(dir $(GO))gofmt -l .)" && $(GO_COMPILES) $(GO) vet $(GO_FLAGS) ./...
	TRITONMQ_TEST_GO=1 $(BIN)/python -m pytest -m go tests/clients

go-proto: $(VENV)/.ready build/go/protoc-gen-go-grpc ## generate the Go messages anew, after mq.proto has changed
	cd src && PATH="$(CURDIR)/build/go:$$PATH" ../$(BIN)/python -m grpc_tools.protoc -I. \
		--go_out=../$(GO_CLIENT) --go_opt=module=tritonmq/clients/go,Mmq_protocol/mq.proto=tritonmq/clients/go/pb \
		--go-grpc_out=../$(GO_CLIENT) --go-grpc_opt=module=tritonmq/clients/go,Mmq_protocol/mq.proto=tritonmq/clients/go/pb \
		mq_protocol/mq.proto

build/go/protoc-gen-go-grpc:
	GOBIN="$(CURDIR)/build/go" $(GO) install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
	GOBIN="$(CURDIR)/build/go" $(GO) install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2

# Debian's package, unpacked and not installed
monitoring: $(VENV)/.ready build/prometheus/usr/bin/promtool ## alert rules and dashboard, with a real Prometheus
	$(BIN)/python deploy/monitoring/make_dashboard.py
	TRITONMQ_TEST_MONITORING=1 $(BIN)/python -m pytest tests/deploy tests/cluster/test_monitoring.py

alerts: $(VENV)/.ready build/prometheus/usr/bin/promtool ## cause each alert on real brokers with a real Prometheus; writes tests/ALERTS.md
	$(BIN)/python -m tests.alerts --table tests/ALERTS.md

quiet: $(VENV)/.ready build/prometheus/usr/bin/promtool ## what chaos runs, without faults, and the alert rules as they are: make quiet MINUTES=60; none may fire
	$(BIN)/python -m tests.alerts.quiet --minutes $(MINUTES) --table tests/ALERTS.md

tutorial: $(VENV)/.ready build/prometheus/usr/bin/promtool ## docs/tutorial.md as a newcomer pastes it, with a real Prometheus and a kill -9
	TRITONMQ_TEST_TUTORIAL=1 $(BIN)/python -m pytest tests/documents/test_tutorial.py

build/prometheus/usr/bin/promtool:
	mkdir -p build/prometheus
	cd build/prometheus && apt-get download prometheus && dpkg -x prometheus_*.deb .

# Debian's packages again; chromium's libraries too, where the machine has none
browser: $(VENV)/.ready build/chromium/usr/bin/chromedriver ## the console's pages in a real browser; takes the pictures of docs/console.md anew
	TRITONMQ_TEST_BROWSER=1 $(BIN)/python -m pytest tests/mq_console/test_in_a_browser.py

build/chromium/usr/bin/chromedriver:
	mkdir -p build/chromium/debs/partial
	apt-get install -q --yes --no-install-recommends --download-only -o Debug::NoLocking=1 -o Dir::Cache::archives=$(CURDIR)/build/chromium/debs chromium chromium-driver fonts-inter
	cd build/chromium && for package in debs/*.deb; do dpkg -x $$package . || exit 1; done && rm -rf debs

lock:                         ## pin every dependency anew
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/pip -q install pip-tools
	.venv-lock/bin/pip-compile -q --extra security --extra spark --extra connect --extra console --extra otel --extra demo --extra dev --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url --no-emit-find-links --no-emit-trusted-host --no-header -o requirements.lock pyproject.toml
	rm -rf .venv-lock

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip -q install --no-compile --require-hashes -r requirements.lock  # most of it is never imported
	$(BIN)/python -m pip -q install --no-deps -e .
	touch $@

clean:
	rm -rf $(VENV) .venv-lock .venv-proto build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
