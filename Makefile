# Everything works from a bare clone; each target sets up what it needs.

PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/installed
# Under coverage, with a GPU for themselves, or with a bound on time; all other tests share the machine in twos.
APART := tests/scheduling tests/host/sharing/test_gpu.py tests/faults/test_kill.py

.PHONY: setup demo test check smoke format golden docs mutations clean

setup: $(SETUP)           ## make .venv with ebrl, Meta-World and the development tools in it

$(SETUP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[metaworld,dev]'
	touch $(SETUP)

demo: $(SETUP)            ## train the main example to the end
	$(BIN)/ebrl train examples/drawer-open.toml

test: $(SETUP)            ## run every test; tests/scheduling must cover scheduling/ to the last branch
	$(BIN)/python -m pytest -q $(APART) --cov
	$(BIN)/python -m pytest -q -n 2 --dist worksteal $(APART:%=--ignore=%)

check: $(SETUP)           ## lint and type-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

smoke: $(SETUP)           ## run every quick bench; says nothing about speed
	$(BIN)/python tests/smoke.py

format: $(SETUP)          ## apply the formatter
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: $(SETUP)          ## write the golden traces anew; read the difference before you commit it
	$(BIN)/python tests/golden/goldens.py

docs: $(SETUP)            ## write the generated pages of docs/ anew
	$(BIN)/python docs/make_states.py
	$(BIN)/python docs/make_plans.py
	$(BIN)/python docs/make_matrix.py

mutations: $(SETUP)       ## put deliberate faults into a copy of the control plane; each must be found
	$(BIN)/python tests/mutations.py

clean:                    ## remove the virtual environment and caches; runs stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist src/*.egg-info
