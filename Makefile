# Each target works alone on a fresh clone: the first one to need it builds .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test test-slow test-oldest test-gpu check format clean constraints

# The whole round on a small U-Net; exit code 3 means that nothing faster was found or proven, which is an answer too.
demo: $(READY)
	$(BIN)/hotlap lap unet --for infer --batch 8 --set workload.width=16 --quick --budget 120s --name demo || test $$? -eq 3
	@echo "The page to look at:" && ls -d runs/demo/*/report.html | tail -n 1

# Python may write bytecode, also where the shell says otherwise: hundreds of processes would compile the same files again.
test test-slow test-oldest: export PYTHONDONTWRITEBYTECODE =

# Two processes at a time: most tests wait for processes that they start.
test: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not slow'

# What takes longest: campaigns of kills, long compilations, Triton's interpreter.
test-slow: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m slow

# The tests with the oldest torch that is supported, in an environment of its own.
OLDEST := .venv-oldest
test-oldest:
	@test -x $(OLDEST)/bin/uv || ($(PYTHON) -m venv $(OLDEST) && $(OLDEST)/bin/python -m pip install --quiet uv)
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python 'torch==2.11.*' 'torchvision==0.26.*' -e '.[dev]'
	$(OLDEST)/bin/python -m pytest -q -n 2 --dist worksteal -m 'not slow'

# The same test bodies on a card, with whatever python3 has torch: nothing is installed. Side by side where that python3
# has pytest-xdist; those that time the card come last, one by one.
SIDE_BY_SIDE = $(shell $(PYTHON) -c "import xdist" 2>/dev/null && echo "-n 6 --dist worksteal")
GPU_TESTS = PYTHONPATH=src:$$PYTHONPATH $(PYTHON) -m pytest -q -p no:cacheprovider
test-gpu:
	$(GPU_TESTS) -m 'gpu and not alone' $(SIDE_BY_SIDE)
	$(GPU_TESTS) -m 'gpu and alone'

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt uv
	$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python -c constraints.txt -e '.[dev]'
	@touch $@

# Re-pins everything to what the registry offers today; names and versions only.
constraints:
	rm -rf $(VENV) && $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --python $(BIN)/python -e '.[dev]'
	$(BIN)/uv pip freeze --python $(BIN)/python --exclude-editable > constraints.txt

clean:
	rm -rf $(VENV) $(OLDEST) .mypy_cache .pytest_cache .ruff_cache
