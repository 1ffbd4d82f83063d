# `make lab` to learn, `make test` to check everything, `make help` for the rest.
# Needs python3 (3.11 or newer, with its venv module) and make (GNU 3.81 or newer); everything else goes into .venv.
# Every path here is relative, so that the folder may have spaces in its name.

PYTHON ?= python3
# Options for JupyterLab, for example: make lab LAB_ARGS=--no-browser
LAB_ARGS ?=
# Options for `pip install`. On Linux the usual torch is a CUDA build of several GB. Without an NVIDIA GPU,
# name PyTorch's index of CPU builds: make lab PIP_ARGS='--extra-index-url ADDRESS'. pip then prefers its build
# of the same release.
PIP_ARGS ?=
# Options for the unit and property tests, for example: make test PYTEST_ARGS='-k manager'
PYTEST_ARGS ?=
# How many random operations `make nightly` runs.
MINIKV_OPERATIONS ?= 1000000
# The browser for the browser tests. Left empty, the usual names are tried.
MINIKV_CHROMIUM ?=

PY := .venv/bin/python
# The stamp says that an install came to its end, and in which folder.
STAMP := .venv/minikv-installed
# Its forerunner: there while an install runs, and left behind when one is broken off.
UNFINISHED := .venv/minikv-unfinished
# JupyterLab's default settings for this project; what a learner sets in JupyterLab still wins.
LAB_SETTINGS := jupyter/labconfig/default_setting_overrides.json
# A moved or copied folder, or a Python that is gone, makes the environment useless: then install again.
STALE := $(shell { [ "$$(cat $(STAMP) 2>/dev/null)" = "$$(pwd -P)" ] && $(PY) -c '' 2>/dev/null; } || echo again)

.PHONY: help lab test nightly format install python-check chromium-check again
.DEFAULT_GOAL := help

help:
	@echo 'make lab       install if needed, then open notebooks/00_start_here.ipynb in JupyterLab'
	@echo 'make test      install if needed, then check format, lint, types, tests, notebooks and the browser'
	@echo 'make nightly   the long property run, $(MINIKV_OPERATIONS) random operations, and ten minutes of the engine'
	@echo 'make format    let ruff format the code and mend what it can'
	@echo 'make install   only create .venv and install'
	@echo 'Variables are explained at the top of the Makefile: PYTHON, LAB_ARGS, PIP_ARGS, PYTEST_ARGS, MINIKV_CHROMIUM'

lab: install
	@echo '== Opening JupyterLab; Ctrl-C here ends it'
	@$(PY) -m jupyterlab notebooks/00_start_here.ipynb $(LAB_ARGS)

test: chromium-check install
	@echo '== 1/6 Format (ruff)'
	@$(PY) -m ruff format --check .
	@echo '== 2/6 Lint (ruff)'
	@$(PY) -m ruff check .
	@echo '== 3/6 Types (mypy)'
	@$(PY) -m mypy
	@echo '== 4/6 Unit and property tests'
	@$(PY) -m pytest tests --ignore=tests/browser -rP $(PYTEST_ARGS)
	@echo '== 5/6 Notebooks: every stored output against a fresh run'
	@$(PY) -m pytest --nbval notebooks/*.ipynb
	@echo '== 6/6 Browser: JupyterLab in Chromium'
	@MINIKV_CHROMIUM="$$($(find_chromium))" $(PY) -m pytest tests/browser -rP

nightly: install
	@echo '== Long property run, $(MINIKV_OPERATIONS) random operations'
	@MINIKV_OPERATIONS=$(MINIKV_OPERATIONS) $(PY) -m pytest tests -m nightly $(PYTEST_ARGS)

format: install
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

install: $(STAMP)

# An environment that was broken off half-way is thrown away, not mended: pip takes a package whose files are
# half there for installed. What was downloaded stays in pip's cache, so this costs seconds.
$(STAMP): pyproject.toml constraints.txt $(LAB_SETTINGS) $(if $(STALE),again)
	@if [ -e $(UNFINISHED) ] || ! $(PY) -c '$(old_enough); import pip' 2>/dev/null; then \
		$(MAKE) --no-print-directory python-check || exit 1; \
		echo '== Creating a Python environment in .venv'; \
		rm -rf .venv && $(PYTHON) -m venv .venv || exit 1; \
	fi
	@rm -f $(STAMP) && touch $(UNFINISHED)
	@echo '== Installing minikv and what it needs into .venv (the first time: some minutes, 2 GB or more)'
	@$(PY) -m pip install --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[test,train]'
	@mkdir -p .venv/etc/jupyter/labconfig && cp $(LAB_SETTINGS) .venv/etc/jupyter/labconfig
	@echo '== Compiling the attention kernel and the decode step (a minute, once)'
	@$(PY) -c 'from minikv.compiled_step import warm_up; warm_up()'
	@pwd -P > $(STAMP) && rm -f $(UNFINISHED)
	@echo '== Installed'

old_enough := import sys; assert sys.version_info >= (3, 11)

python-check:
	@command -v $(PYTHON) >/dev/null || { \
		echo 'minikv needs $(PYTHON), and there is none. Install Python 3.11 or newer (Debian, Ubuntu: apt install python3 python3-venv).'; \
		exit 1; }
	@$(PYTHON) -c '$(old_enough)' 2>/dev/null || { \
		echo "minikv needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1)."; \
		echo 'Install a newer one, and name it if it is not python3: make lab PYTHON=python3.12'; \
		exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo 'minikv needs the venv module of $(PYTHON). Debian, Ubuntu: apt install python3-venv'; \
		exit 1; }

# Prints where Chromium is, or fails.
find_chromium = if [ -n '$(MINIKV_CHROMIUM)' ]; then command -v '$(MINIKV_CHROMIUM)'; else \
	command -v chromium || command -v chromium-browser || command -v google-chrome || \
	command -v '/Applications/Chromium.app/Contents/MacOS/Chromium' || \
	command -v '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome'; fi

chromium-check:
	@{ $(find_chromium); } >/dev/null || { \
		echo 'The browser tests need Chromium. Debian: apt install chromium; elsewhere install Chromium or Chrome.'; \
		echo 'If it has an unusual name: make test MINIKV_CHROMIUM=/where/it/is'; \
		exit 1; }
