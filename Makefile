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

.PHONY: audit bench scenes demo dist docs fuzz soak lowest picture test test-all check format oracle clean weights-sums wheel

demo: .venv/.core  ## recover metric depth for the bundled sample
	$(BIN)/scalefield demo --out $(OUT)

bench: results-bench results-lidar  ## running times
fuzz: results-fuzz  ## damage every kind of file 100,000 times
soak: results-soak  ## thousands of calls and requests, checked for lost memory and files

# The records in results/: `make results FRAMES=… STRONG=… FASTDEPTH=…` makes all of them again that
# need no GPU, about 3 h on two cores, and the tables of the pages; `make results-NAME` makes one.
# results/README.md says how long each takes. LIMIT=2 takes only so many frames, and less of all else,
# and writes to out/limited. An evaluation that was interrupted goes on at the same commit.
EVALUATED := places places-fastdepth strong strong-affine places-affine-lite places-affine-fastdepth comparison
MEASURED := field reliability bench lidar scenes page labelling fuzz soak lowest
RECORDS := $(if $(LIMIT),out/limited,results)
RUNS := out/runs/$(or $(LIMIT),all)-$(shell git rev-parse --short HEAD 2> /dev/null)
MEASURE := nice -n 10 $(BIN)/python -m
FOLDER_FRAMES := a folder of frames (docs/benchmark.md, "Data")
FOLDER_STRONG := a folder of stored outputs of estimators, in the layout `predictions`
FOLDER_FASTDEPTH := an ONNX file of FastDepth (src/scalefield/mde/onnx_mde.py)
need = @test -e '$($(1))' || \
  { echo '$(@:need-%=results-%): set $(1) to $(FOLDER_$(1)); found "$($(1))"'; exit 1; }

.NOTPARALLEL:
.PHONY: results $(EVALUATED:%=results-%) $(MEASURED:%=results-%)
results: need-places-fastdepth need-strong $(EVALUATED:%=results-%) $(MEASURED:%=results-%)
	$(BIN)/python scripts/tables.py

export FRAMES STRONG FASTDEPTH LIMIT WORKERS
$(EVALUATED:%=results-%): results-%: need-% .venv/.dev
	RECORDS=$(RECORDS) RUNS=$(RUNS) PATH="$(abspath $(BIN)):$$PATH" \
	  nice -n 10 recipes/evaluate.sh $*

need-places need-places-affine-lite need-field:
	$(call need,FRAMES)
need-places-fastdepth need-places-affine-fastdepth need-reliability:
	$(call need,FRAMES)
	$(call need,FASTDEPTH)
need-strong need-strong-affine:
	$(call need,STRONG)
need-comparison: need-places-fastdepth need-strong

results-field: need-field .venv/.dev
	$(MEASURE) benchmarks.field --root "$(FRAMES)" --out $(RECORDS)/field \
	  $(if $(LIMIT),--limit $(LIMIT))

results-reliability: need-reliability .venv/.dev
	$(MEASURE) benchmarks.reliability --root "$(FRAMES)" --mde lite "$(FASTDEPTH)" \
	  --out $(RECORDS)/reliability $(if $(LIMIT),--limit $(LIMIT))

results-bench: .venv/.dev
	$(PIP) --group bench
	$(MEASURE) benchmarks.bench --out $(RECORDS)/bench $(if $(LIMIT),--quick)

results-lidar: .venv/.dev
	$(MEASURE) benchmarks.lidar --out $(RECORDS)/lidar $(if $(LIMIT),--repeats $(LIMIT))

results-scenes: .venv/.dev
	$(MEASURE) benchmarks.scenes --sequences $(if $(LIMIT),$(LIMIT),8) \
	  $(if $(ROOMS),--rooms "$(ROOMS)") $(if $(LIMIT),--limit $(LIMIT)) --out $(RECORDS)/scenes

results-page: .venv/.dev
	$(MEASURE) benchmarks.page --out $(RECORDS)/page $(if $(LIMIT),--edits $(LIMIT))

results-labelling: .venv/.dev
	$(MEASURE) benchmarks.labelling --images $(if $(LIMIT),8,40) --rounds $(if $(LIMIT),1,3) \
	  --out $(RECORDS)/labelling

results-fuzz: .venv/.dev
	nice -n 10 $(BIN)/python -m fuzz --cases $(if $(LIMIT),1000,100000) --workers $(WORKERS) \
	  --out $(RECORDS)/fuzz

results-soak: .venv/.dev
	$(MEASURE) benchmarks.soak --calls $(if $(LIMIT),600,3000) --out $(RECORDS)/soak

docs: .venv/.dev  ## the documentation as a site: out/site
	$(BIN)/python -m mkdocs build --strict

picture: .venv/.core  ## the pictures of the README and of the first page of docs/
	for n in 1 6 15; do $(BIN)/scalefield demo --points $$n --out $(OUT)/$$n > $(OUT)-$$n.txt \
	  && cp $(OUT)/$$n/comparison.jpg docs/error-$$n.jpg || exit 1; done
	cp $(OUT)/6/preview.png docs/room.png

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

# Build the sdist and the wheel of the last commit, and test the wheel in an environment of its own.
# `git archive` has the tracked files only, whatever else lies in the folder.
dist: .venv/.core
	rm -rf dist .wheel
	$(PIP) --group release
	mkdir -p .wheel/source dist
	git archive HEAD | tar -x -C .wheel/source
	$(BIN)/python -m build --outdir dist .wheel/source > /dev/null
	$(BIN)/python -m twine check --strict dist/*

wheel: dist
	$(PYTHON) -m venv .wheel
	.wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-cpu.txt \
	  dist/*.whl
	.wheel/bin/python scripts/smoke_wheel.py

# Test the oldest versions that pyproject.toml allows. Only these targets ignore
# constraints-cpu.txt, which requires a newer torch; UV_TORCH_BACKEND=cpu saves gigabytes if that
# index can be reached.
lowest: .lowest/.ready
	$(LOWEST_TESTS)

# The same with a record: versions, outcome, and forty comparisons of workers.
results-lowest: .lowest/.ready
	mkdir -p $(RECORDS)/lowest
	$(BIN)/uv pip freeze --python .lowest --exclude-editable > $(RECORDS)/lowest/versions.txt
	SCALEFIELD_REPEAT=$(or $(LIMIT),20) nice -n 10 .lowest/bin/python -m pytest -q \
	  tests/reliability/test_determinism.py -k workers > $(RECORDS)/lowest/determinism.txt
	nice -n 10 $(LOWEST_TESTS) > .lowest/tests.txt; status=$$?; \
	  tail -n 12 .lowest/tests.txt > $(RECORDS)/lowest/tests.txt; exit $$status

LOWEST_TESTS = .lowest/bin/python -m pytest -n $(WORKERS) $(if $(LIMIT),tests/io) \
  --ignore=tests/export/test_onnx_export.py --ignore=tests/training --ignore=tests/labelling \
  --ignore=tests/web/test_page.py

.lowest/.ready: .venv/.core
	$(PIP) --group release
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .lowest
	$(BIN)/uv pip install --quiet --python .lowest --resolution lowest-direct \
	  --editable ".[mde,onnx,exr,region,plot,colmap,web,heic,video]" --group dev
	touch $@

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
	$(PIP) --editable ".[mde,onnx,exr,region,plot,colmap,export,ray,rerun,tensorboard,web,heic,video,protocols,ros]" --group dev --group docs
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
