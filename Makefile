# Each target works alone on a fresh clone: the first one to need it builds .venv.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test test-gpu check format clean constraints

# A small U-Net: plain CPU settings against the tuned ones (threads, layout, bf16, torch.compile), or the GPU if there is one.
demo: $(READY)
	$(BIN)/hotlap doctor --only host,cpu-math,cpu-threads,cuda-start
	$(BIN)/hotlap bench unet --mode infer --batch 8 --set workload.width=16 --name demo \
		--processes 7 --seconds 0.3 --max-seconds 1.5 --warmup-seconds 1 || test $$? -eq 3
	@echo "The page to look at:" && $(BIN)/hotlap report demo

test: $(READY)
	$(BIN)/python -m pytest -q

# The same test bodies on a card, with whatever python3 has torch: nothing is installed.
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest -q -m gpu -p no:cacheprovider

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
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
