# make demo    COFFEE learns the induction-head task (KERAS_BACKEND=torch make demo: on PyTorch)
# make test    format, lint, types, and the whole suite once per backend
# make reproduce ARGS="table1 --seeds 3"    rows of the paper; ARGS=--list names them
# make reproduce ARGS="beyond parity"       tasks beyond the paper, with every mixer
# make reproduce-smoke                      a few steps of each of them
# make starts ARGS="weather --seeds 1"      where layers start, compared on series
# make search ARGS="induction-heads"        hyperparameters, by KerasTuner
# make search-smoke                         a few tiny trials of every search
# make notebooks                            runs examples/notebooks with small settings
# make docs                                 the documentation, into outputs/site
# make dist                                 wheel and source distribution, into dist/, checked by twine
# make dist-check                           the wheel alone with one backend, each in turn
# make dist-check VERSIONS=oldest           the same with the oldest versions; newest: the newest

PYTHON ?= python3
KERAS_BACKEND ?= jax

BACKENDS := jax tensorflow torch
# TensorFlow keeps what it compiled for as long as a process lives: the suite is run by several.
PARTS := 1 2 3 4 5
SUITE := $(foreach part,$(PARTS),$(BACKENDS:%=part-%-$(part)))
PACKAGE_jax := jax
# The package without GPU support; where there is none, as on macOS: PACKAGE_tensorflow=tensorflow
PACKAGE_tensorflow := tensorflow-cpu
PACKAGE_torch := torch
# PyPI's PyTorch for Linux is the one for GPUs, some gigabytes with all it brings. It is installed
# only where this index is out of reach, or empty.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

SYNC := $(if $(filter output-sync,$(.FEATURES)),--output-sync=target)
RUN := .venv/bin/python
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check \
	--constraint constraints.txt

# An environment that could not be made whole is removed, and made anew next time.
.DELETE_ON_ERROR:

.PHONY: demo reproduce reproduce-smoke starts search search-smoke notebooks docs dist dist-check \
	test test-nightly test-peers lint format bench clean \
	$(foreach rule,test test-nightly test-keras-nightly bench dist-check,$(BACKENDS:%=$(rule)-%)) $(SUITE)

# The model is small: on PyTorch a second thread gains nothing, and waits where cores are busy.
demo: export OMP_NUM_THREADS ?= 1
demo: .venv/installed-demo-$(KERAS_BACKEND)
	KERAS_BACKEND=$(KERAS_BACKEND) $(RUN) examples/induction_head.py $(ARGS)

# Large blocks of memory stay with the process, instead of being cleared by the system for every step:
# on JAX a step of Table 1's S6 takes 7.0 ms instead of 9.9.
reproduce: .venv/installed-demo-$(KERAS_BACKEND)
	MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=8589934592 \
		KERAS_BACKEND=$(KERAS_BACKEND) $(RUN) examples/paper/reproduce.py $(ARGS)

starts: .venv/installed-dev
	KERAS_BACKEND=$(KERAS_BACKEND) $(RUN) examples/beyond/starts.py $(ARGS)

# Every row of the paper for a few steps, images of noise instead of MNIST.
reproduce-smoke: .venv/installed-demo-$(KERAS_BACKEND)
	rm -rf outputs/smoke
	KERAS_BACKEND=$(KERAS_BACKEND) $(RUN) examples/paper/reproduce.py --all --smoke
	KERAS_BACKEND=$(KERAS_BACKEND) $(RUN) examples/paper/ih0.py --output outputs/smoke/ih0.png

search: .venv/installed-search-$(KERAS_BACKEND)
	KERAS_BACKEND=$(KERAS_BACKEND) $(RUN) examples/searches/search.py $(ARGS)

# A few tiny trials of every search space by every tuner, and a chief with two workers.
search-smoke: .venv/installed-search-$(KERAS_BACKEND)
	rm -rf outputs/smoke/searches
	KERAS_BACKEND=$(KERAS_BACKEND) $(RUN) examples/searches/search.py --smoke
	KERAS_BACKEND=$(KERAS_BACKEND) $(RUN) examples/searches/distributed.py induction-heads \
		--workers 2 --trials 4 --epochs 1 --steps 4 --work outputs/smoke/searches/distributed

# With the small settings that each notebook holds for it. What their first cells install is here, and
# tests may be using it: they run dry, and leave what it depends on alone, which takes pip seconds.
notebooks: .venv/installed-dev
	PIP_DRY_RUN=1 PIP_NO_DEPS=1 PIP_NO_BUILD_ISOLATION=0 OMP_NUM_THREADS=1 \
		$(RUN) -m pytest --nbmake --nbmake-timeout=300 examples/notebooks $(ARGS)

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo "Open outputs/site/index.html."

dist: .venv/installed-dev
	rm -rf dist
	$(RUN) -m build
	$(RUN) -m twine check --strict dist/*

dist-check:
	$(MAKE) --jobs=2 $(SYNC) $(BACKENDS:%=dist-check-%)

# Versions of Keras, NumPy and the backend: those of CI, the oldest that pyproject.toml allows, or what
# pip finds today.
VERSIONS ?= constraints
CONSTRAINTS_constraints := --constraint constraints.txt
CONSTRAINTS_oldest := --constraint constraints-oldest.txt

# As a user has it: the wheel, one backend and nothing else, away from these sources.
$(BACKENDS:%=dist-check-%): dist-check-%: dist
	rm -rf outputs/dist-$*
	mkdir -p outputs
	$(PYTHON) -m venv outputs/dist-$*
	outputs/dist-$*/bin/python -m pip install --quiet --disable-pip-version-check \
		$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) $(CONSTRAINTS_$(VERSIONS)) \
		--no-compile dist/*.whl $(PACKAGE_$*) pytest hypothesis \
		$(if $(filter tensorflow,$*),mypy==2.4.1)
	XLA_FLAGS= KERAS_BACKEND=$* outputs/dist-$*/bin/python -P -m pytest -m smoke \
		tests/release/installed.py tests/layers tests/ops \
		tests/test_architecture.py tests/test_readme.py tests/test_streaming.py \
		-W "ignore:keras_coffee runs its recurrences without" $(ARGS)

# Two processes at a time; each shows what it has to say when it is done.
test: lint
	$(MAKE) --jobs=2 $(SYNC) $(SUITE)

lint: .venv/installed-dev
	$(RUN) -m ruff format --check
	$(RUN) -m ruff check
	$(RUN) -m mypy

# With ARGS, such as files, in one process.
$(BACKENDS:%=test-%): test-%: .venv/installed-dev
	$(if $(ARGS),KERAS_BACKEND=$* $(RUN) -m pytest $(ARGS),$(MAKE) $(filter part-$*-%,$(SUITE)))

# part-jax-2: the second part of the suite on JAX.
$(SUITE): part-%: .venv/installed-dev
	KERAS_BACKEND=$(word 1,$(subst -, ,$*)) $(RUN) -m pytest --part=$(word 2,$(subst -, ,$*))/$(words $(PARTS))

# What a night allows: 500 random layers, where `make test` draws fifty on PyTorch and 25 elsewhere,
# every solver at every length, and what compiles for long.
test-nightly: $(BACKENDS:%=test-nightly-%)

$(BACKENDS:%=test-nightly-%): test-nightly-%: .venv/installed-dev
	XLA_FLAGS= KERAS_BACKEND=$* $(RUN) -m pytest tests/benchmarks tests/docs tests/examples \
		tests/export tests/layers tests/ops tests/solvers \
		tests/test_architecture.py tests/test_drop_in.py tests/test_models.py \
		tests/backend/test_jax_kernels.py tests/backend/test_triton.py \
		--hypothesis-profile=nightly $(ARGS)

# Side by side with other implementations, and Triton's kernels under the sanitizer of triton-viz, all
# installed here without what they depend on beyond this.
# DEER is on no registry; where its repository is out of reach, its tests skip and say so.
PEERS := pararnn-torch safetensors optimistix lineax equinox jaxtyping wadler_lindig
# Flask and the two after it are imported with triton-viz, and not used.
SANITIZER := triton-viz z3-solver anytree flask flask_cloudflared blinker itsdangerous
TRANSFORMERS := transformers tokenizers huggingface_hub regex filelock pyyaml tqdm
DEER := git+https://github.com/machine-discovery/deer@409140f

test-peers: .venv/installed-peers
	KERAS_BACKEND=torch $(RUN) -m pytest tests/peers -rs $(ARGS)
	KERAS_BACKEND=jax $(RUN) -m pytest tests/peers -rs $(ARGS)
	KERAS_BACKEND=tensorflow $(RUN) -m pytest -p triton tests/peers/test_transformers.py -rs $(ARGS)

.venv/installed-peers: .venv/installed-dev
	$(INSTALL) --no-deps $(PEERS) $(SANITIZER) $(TRANSFORMERS)
	-$(INSTALL) --no-deps $(DEER)
	touch $@

# The layers on the Keras of tomorrow.
$(BACKENDS:%=test-keras-nightly-%): test-keras-nightly-%: .venv/installed-dev
	$(INSTALL) --upgrade --no-deps --target .venv/keras-nightly keras-nightly
	KERAS_BACKEND=$* PYTHONPATH=.venv/keras-nightly $(RUN) -m pytest tests/layers \
		tests/test_drop_in.py tests/test_streaming.py \
		-W "ignore:keras_coffee runs its recurrences without" $(ARGS)

format: .venv/installed-dev
	$(RUN) -m ruff format
	$(RUN) -m ruff check --fix

bench: $(BACKENDS:%=bench-%)

$(BACKENDS:%=bench-%): bench-%: .venv/installed-bench
	KERAS_BACKEND=$* $(RUN) benchmarks/bench.py --sweep --json outputs/benchmarks/$*.json \
		--plot outputs/benchmarks/$*.png $(ARGS)

# Where the peers cannot be installed, their rows are left out and say so.
.venv/installed-bench: .venv/installed-dev
	-$(INSTALL) --no-deps mambapy pararnn-torch safetensors
	-$(INSTALL) --no-deps $(TRANSFORMERS)
	touch $@

$(RUN):
	$(PYTHON) -m venv .venv

.venv/installed-demo-torch .venv/installed-dev: .venv/installed-torch

.venv/installed-torch: constraints.txt | $(RUN)
	@test -z "$(TORCH_INDEX)" || \
		$(INSTALL) --no-deps --retries 1 --index-url $(TORCH_INDEX) torch 2> /dev/null || \
		echo "$(TORCH_INDEX) is out of reach; PyPI's PyTorch comes instead."
	touch $@

.venv/installed-demo-%: pyproject.toml constraints.txt | $(RUN)
	@echo "Installing Keras and $(PACKAGE_$*) into .venv, which takes a minute."
	$(INSTALL) --editable ".[plots]" $(PACKAGE_$*)
	touch $@

.venv/installed-search-%: .venv/installed-demo-%
	$(INSTALL) --editable ".[plots,tuner]"
	touch $@

# What MkDocs needs, without this package, Keras or a framework: the sources are read, not imported.
DOCS := import tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]
DOCS += ; print(*extras["optional-dependencies"]["docs"], sep="\n")
.venv/installed-docs: pyproject.toml constraints.txt | $(RUN)
	$(RUN) -c '$(DOCS)' > .venv/docs.txt
	$(INSTALL) --requirement .venv/docs.txt
	touch $@

.venv/installed-dev: pyproject.toml constraints.txt | $(RUN)
	$(INSTALL) --editable ".[dev,docs,export,notebooks,plots,tuner]" \
		$(foreach backend,$(BACKENDS),$(PACKAGE_$(backend)))
	touch $@

clean:
	rm -rf .venv outputs
