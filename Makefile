# The single entry: what CI runs, a person runs with the same words. Every target sets up what it needs first.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-kafka check-demo up down test test-fast soak lint bench wheel clean

# Of the project alone: a Spark installed elsewhere would bring other jars than the ones that were checked.
unexport SPARK_HOME SPARK_CONF_DIR PYTHONHOME
unexport PYTHONDONTWRITEBYTECODE  # some images set it: then every run of the tests compiles them all, for 10 s
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYSPARK_PYTHON := $(CURDIR)/.venv/bin/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)
export TZ := UTC
FAST := "not spark and not postgres and not kafka and not live and not cluster and not crash and not slow"
# Half of the tests runs beside the other half. The live tests run alone: a scheduler's clocks go on under load.
BESIDE := tests/collections tests/iceberg tests/sinks tests/spark_apps
LIVE := tests/live

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup:  ## create .venv, install requirements-dev.txt, resolve Spark's jars into .jars (once; then offline)
	@tools/setup

demo: setup  ## reconcile real data through a real Airflow, then change a source and do it again (DEMO_ARGS=--exit)
	@python -m examples.demo $(DEMO_ARGS)

demo-kafka: setup  ## write weather through a real Kafka broker, kill it meanwhile, and ingest every row once
	@python -m examples.kafka_demo

check-demo: setup  ## run the demo to its end, and check what it says and that it leaves nothing running
	@python -m tools.check_demo

up: setup  ## start Airflow on this project in the background and print its address
	@python -m tools.local_airflow.standalone up

down: setup  ## stop the Airflow that `make up` started
	@python -m tools.local_airflow.standalone down

test: setup  ## run every test (Spark, PostgreSQL, a live scheduler, a Spark cluster)
ifdef PYTEST_ARGS
	python -m pytest $(PYTEST_ARGS)
else
	python -m tools.halves $(BESIDE) -- --ignore=$(LIVE)
	python -m pytest -x $(LIVE)
endif

test-fast: setup  ## run the tests that need no JVM, no server and no patience (under a minute)
ifdef PYTEST_ARGS
	python -m pytest -m $(FAST) $(PYTEST_ARGS)
else
	python -m tools.halves $(BESIDE) -- -m $(FAST)
endif

soak: setup  ## explore at random until the time is up or a test fails (SOAK_MINUTES=60, SOAK_MODULES=all that draw)
	python -m tools.soak $(or $(SOAK_MINUTES),60) $(SOAK_MODULES)

lint: setup  ## ruff check, ruff format --check, mypy
	ruff check
	ruff format --check
	mypy

bench: setup  ## run the benchmarks; prints one table, writes bench/results.json
	python -m bench $(BENCH_ARGS)

wheel: setup  ## build dist/tidemark-*.whl, which works without this folder
	python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

clean:  ## remove what the demo, the tests and the tools left (keeps .venv, .jars and .tidemark)
	rm -rf .demo .pytest_cache .hypothesis .mypy_cache .ruff_cache spark-warehouse
