# `make demo` and `make test` do all of their own set-up, in .venv.
# A machine without a GPU saves gigabytes with
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo

PYTHON ?= python3
OUT ?= out/demo
WORKERS ?= 2

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-cpu.txt
SOURCES := pyproject.toml constraints-cpu.txt

.PHONY: bench demo picture test check format oracle clean

demo: .venv/.core  ## recover metric depth for the bundled sample
	$(BIN)/scalefield demo --out $(OUT)

bench: .venv/.core  ## what each step costs beside DA3-BASE
	$(BIN)/python benchmarks/bench.py --out results/bench

picture: demo  ## the README's picture
	cp $(OUT)/preview.png docs/room.png

test: check oracle  ## formatting, lint, types, tests
	$(BIN)/python -m pytest -n $(WORKERS)

check: .venv/.dev
	@! $(BIN)/python -m pip show --quiet torchvision 2> /dev/null \
	  || { echo "torchvision is installed: a dependency pulled it in, and must not"; exit 1; }
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: .venv/.dev  ## what `check` would complain about, mended
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# The published Depth Anything 3 network, to compare our port with: without its 133 dependencies,
# in a folder of its own. Where it cannot be had, the tests that need it skip and say so.
oracle: .venv/.dev
	@test -d .oracle/depth_anything_3 || $(PIP) --no-deps --target .oracle \
	  depth-anything-3==0.1.1 addict omegaconf einops \
	  || echo "no oracle for Depth Anything 3: its tests will skip"

.venv/.core: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --upgrade "pip>=25.1"  # the first to know dependency groups
	$(PIP) --editable .
	touch $@

.venv/.dev: .venv/.core
	$(PIP) --editable ".[mde,onnx,exr,region,plot,colmap,export,ray,rerun,web]" --group dev
	touch $@

clean:
	rm -rf .venv .oracle out .pytest_cache .mypy_cache .ruff_cache .hypothesis
