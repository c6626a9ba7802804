# make serve   starts the service, with simulated readers to watch
# make test    everything CI runs
# make test-long  the studies that make test leaves out
# make test-lowest  the quick tests with the oldest versions that pyproject.toml allows; make test-newest, newest
# make faults  kills and pauses processes of the service under load, and looks for what is missing
# make hardening  simulation, power cuts, generated and broken requests, for hours; stop it and it goes on later
# make dist    sdists and wheels of the client and of fedres, in dist/; make dist-test installs them with each extra
# make reference  the pages of docs/reference that are made from the code
# make docs    the documentation site, in docs/_build/html
# Each makes its own .venv and installs what it needs.

PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
# Installs the client and fedres from this checkout, with an extra; neither is on an index.
install = $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable clients/python --editable '.[$(1)]'
unexport PYTHONDONTWRITEBYTECODE  # hundreds of processes are started: without bytecode each compiles what it imports

.PHONY: serve test test-long test-lowest test-newest check phases lint gates kernels kernels-service lint-and-kernels faults hardening reference docs dist dist-test clean

# Phases note their seconds in this file, and `make test` prints it at its end, also if one of them fails.
SECONDS := .seconds
TIMED := @sh tools/timed.sh $(SECONDS)

test: check

check:
	@rm -f $(SECONDS)
	@$(MAKE) --no-print-directory phases; status=$$?; cat $(SECONDS); exit $$status

phases:
	$(TIMED) install $(MAKE) --no-print-directory .venv/installed
	@$(MAKE) --no-print-directory -j 2 kernels-service lint-and-kernels
	$(TIMED) tests $(BIN)/pytest -n 3 --dist worksteal  # on two cores: tests of faults wait for a fifth of their time

test-long: kernels
	$(BIN)/pytest -n 2 --dist worksteal -m long

test-lowest test-newest: test-%:
	$(PYTHON) tools/test_versions.py $* $(TESTS)

lint: .venv/installed
	$(TIMED) lint $(MAKE) --no-print-directory gates

gates:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell *.md docs service fedres bandits libsvm_tasks research clients examples deploy

kernels: .venv/installed
	$(BIN)/python tools/compile_kernels.py

kernels-service: .venv/installed
	$(TIMED) 'kernels of the service' $(BIN)/python tools/compile_kernels.py service

lint-and-kernels: lint  # takes about as long as the kernels of the service, which another core compiles meanwhile
	$(TIMED) 'kernels of experiments' $(BIN)/python tools/compile_kernels.py experiments

serve: .venv/serves
	$(BIN)/fedres serve --demo

faults: .venv/installed
	$(BIN)/python tools/faults --kills 300 --pauses 50

hardening: .venv/installed  # HARDENING='--share 0.01' for a first look
	$(BIN)/python tools/hardening $(HARDENING)

.venv/serves: pyproject.toml clients/python/pyproject.toml constraints.txt  # a third of what tests need
	@echo 'Installing into .venv: half a minute, without output'
	$(PYTHON) -m venv .venv
	$(call install,serve)
	touch $@

.venv/installed: pyproject.toml clients/python/pyproject.toml constraints.txt
	@echo 'Installing into .venv: a few minutes, without output'
	$(PYTHON) -m venv .venv
	$(call install,dev)
	touch .venv/serves $@

.venv/docs-installed: .venv/installed
	$(call install,docs)
	touch $@

reference: .venv/installed
	PYTHONPATH=. $(BIN)/python docs/reference_pages.py

docs: .venv/docs-installed  # the site, in docs/_build/html
	$(BIN)/sphinx-build -E -W --keep-going -q -b html docs docs/_build/html

dist: .venv/installed  # sdists and, from them, wheels of the last commit, in dist/
	rm -rf dist
	$(BIN)/python tools/build_dist.py dist

dist-test: dist  # installs the wheels with each extra; takes minutes, and downloads. EXTRAS='client serve' for some
	$(BIN)/python tools/install_wheel.py dist $(EXTRAS)

clean:
	rm -rf .venv .venv-lowest .venv-newest build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
