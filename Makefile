# `make demo` and `make test` do all of their own set-up, in .venv.
# A machine without a GPU saves gigabytes with
#   PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make demo

PYTHON ?= python3
OUT ?= out/demo
WORKERS ?= 2

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints-cpu.txt
SOURCES := pyproject.toml constraints-cpu.txt

SCENES ?= 400

.PHONY: audit bench scenes demo docs fuzz soak lowest picture test test-all check format oracle clean weights-sums wheel

demo: .venv/.core  ## recover metric depth for the bundled sample
	$(BIN)/scalefield demo --out $(OUT)

bench: .venv/.core  ## running times: results/bench, and their tables in docs/speed.md
	$(PIP) --group bench
	$(BIN)/python benchmarks/bench.py --out results/bench $(BENCH)
	$(BIN)/python benchmarks/lidar.py --out results/lidar
	$(BIN)/python benchmarks/plot_lidar.py results/lidar --out results/lidar/cost.png
	$(BIN)/python scripts/speed_tables.py

docs: .venv/.dev  ## the documentation as a site: out/site
	$(BIN)/python -m mkdocs build --strict

fuzz: .venv/.dev  ## damage every kind of file 100,000 times; results/fuzz
	$(BIN)/python -m fuzz --cases 100000 --workers $(WORKERS) --out results/fuzz

soak: .venv/.dev  ## thousands of calls and requests, checked for lost memory and files
	$(BIN)/python benchmarks/soak.py --out results/soak

picture: demo  ## the README's picture
	cp $(OUT)/preview.png docs/room.png

test: check oracle  ## formatting, lint, types, and the tests without the slow ones
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

test-all: check oracle  ## the same with the slow tests
	$(BIN)/python -m pytest -n $(WORKERS)

check: .venv/.dev
	@! $(BIN)/python -m pip show --quiet torchvision 2> /dev/null \
	  || { echo "torchvision is installed: a dependency pulled it in, and must not"; exit 1; }
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: .venv/.dev  ## fix formatting and lint
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

# The published Depth Anything 3 network, the reference of our port: without its 133 dependencies, in
# a folder of its own. Tests that need it are skipped if it cannot be installed.
oracle: .venv/.dev
	@test -d .oracle/depth_anything_3 || $(PIP) --no-deps --target .oracle \
	  depth-anything-3==0.1.1 addict omegaconf einops \
	  || echo "no oracle for Depth Anything 3: its tests will skip"

# Build the sdist and the wheel from it, and test the wheel in an environment of its own.
wheel: .venv/.core
	rm -rf dist .wheel
	$(PIP) --group release
	$(BIN)/python -m build --outdir dist > /dev/null
	$(PYTHON) -m venv .wheel
	.wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-cpu.txt \
	  dist/*.whl
	.wheel/bin/python scripts/smoke_wheel.py

# Test the oldest versions that pyproject.toml allows. Only this target ignores constraints-cpu.txt,
# which requires a newer torch; UV_TORCH_BACKEND=cpu saves gigabytes if that index can be reached.
lowest: .venv/.core  ## the versions are written to results/lowest
	$(PIP) --group release
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .lowest
	$(BIN)/uv pip install --quiet --python .lowest --resolution lowest-direct \
	  --editable ".[mde,onnx,exr,region,plot,colmap,web,heic,video]" --group dev
	mkdir -p results/lowest
	$(BIN)/uv pip freeze --python .lowest --exclude-editable > results/lowest/versions.txt
	.lowest/bin/python -m pytest -n $(WORKERS) --ignore=tests/export/test_onnx_export.py \
	  --ignore=tests/training --ignore=tests/labelling --ignore=tests/web/test_page.py

# Known vulnerabilities of everything installed; fails if the database cannot be reached.
audit: .venv/.dev
	$(PIP) --group release
	@$(BIN)/python scripts/audit.py

weights-sums: .venv/.core  ## the hashes of shipped weights, after they were replaced
	$(BIN)/python -m scalefield.io.weights

.venv/.core: $(SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) --upgrade "pip>=25.1"  # the first to know dependency groups
	$(PIP) --editable .
	touch $@

.venv/.dev: .venv/.core
	$(PIP) --editable ".[mde,onnx,exr,region,plot,colmap,export,ray,rerun,tensorboard,web,heic,video]" --group dev --group docs
	touch $@

clean:
	rm -rf .venv .scenes .lowest .oracle .wheel dist out .pytest_cache .mypy_cache .ruff_cache .hypothesis

scenes: .scenes/.ready  ## render rooms, streets and tabletops: out/scenes (docs/scenes.md)
	nice -n 19 .scenes/bin/python -m recipes.scenes library --library out/scenes-library
	nice -n 19 .scenes/bin/python -m recipes.scenes render --library out/scenes-library \
	  --kind mix --scenes $(SCENES) --views 10 --out out/scenes
	.scenes/bin/python -m recipes.scenes check --out out/scenes

.scenes/.ready: recipes/scenes/requirements.txt
	python3.11 -m venv .scenes
	.scenes/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@
