# Two commands matter: `make demo` and `make test`. Each sets up .venv by itself;
# after the packages are installed once, all of them work offline.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.stamp
PYTEST_ARGS ?=
# Optional packages to test with, such as EXTRAS=transformers,serve; without them, their tests are skipped.
EXTRAS ?=
DEV    := $(STAMP)-dev$(if $(EXTRAS),-$(EXTRAS))

.PHONY: demo test test-all check docs bench frontend pictures clean

demo: $(STAMP)
	@$(BIN)/kvledger demo

test: $(DEV)
	$(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

test-all: $(DEV)
	$(BIN)/python -m pytest -m "not gpu and not network" $(PYTEST_ARGS)

check: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest --doctest-modules --doctest-continue-on-failure src -p no:randomly -q
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

docs: $(DEV)
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

bench: $(DEV)
	$(BIN)/python -m benchmarks

# The script and the style of the HTML report; what is built is committed. Needs Node.js and npm.
frontend:
	cd frontend && npm ci --no-audit --no-fund && npm run check && npm run build

# The pictures of the documentation. Needs Node.js, npm and Chromium for those of pages.
pictures: $(DEV)
	cd frontend && npm ci --no-audit --no-fund
	$(BIN)/python docs/pictures.py
	$(BIN)/python docs/page_pictures.py

# The package alone, for `make demo`; with the developers' tools, for the rest.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(DEV): pyproject.toml $(STAMP)
	$(BIN)/python -m pip install --quiet --group dev --editable '.$(if $(EXTRAS),[$(EXTRAS)])'
	@touch $@

clean:
	rm -rf $(VENV) docs/_build dist build .pytest_cache .mypy_cache .ruff_cache
