# make demo    COFFEE learns the induction-head task (KERAS_BACKEND=torch make demo: on PyTorch)
# make test    format, lint, types, and the whole suite once per backend
# make reproduce ARGS="table1 --seeds 3"    rows of the paper; ARGS=--list names them
# make reproduce-smoke                      a few steps of each of them

PYTHON ?= python3
KERAS_BACKEND ?= jax

BACKENDS := jax tensorflow torch
PACKAGE_jax := jax
# The package without GPU support; where there is none, as on macOS: PACKAGE_tensorflow=tensorflow
PACKAGE_tensorflow := tensorflow-cpu
PACKAGE_torch := torch
# PyPI's PyTorch for Linux is the one for GPUs, some gigabytes with all it brings. It is installed
# only where this index is out of reach, or empty.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

RUN := .venv/bin/python
INSTALL := $(RUN) -m pip install --quiet --disable-pip-version-check \
	--constraint constraints.txt

# An environment that could not be made whole is removed, and made anew next time.
.DELETE_ON_ERROR:

.PHONY: demo reproduce reproduce-smoke test test-nightly test-peers lint format bench clean \
	$(foreach rule,test test-nightly test-keras-nightly bench,$(BACKENDS:%=$(rule)-%))

demo: .venv/installed-demo-$(KERAS_BACKEND)
	KERAS_BACKEND=$(KERAS_BACKEND) $(RUN) examples/induction_head.py $(ARGS)

reproduce: .venv/installed-demo-$(KERAS_BACKEND)
	KERAS_BACKEND=$(KERAS_BACKEND) $(RUN) examples/paper/reproduce.py $(ARGS)

# Every row of the paper for a few steps, images of noise in the place of MNIST.
reproduce-smoke: .venv/installed-demo-$(KERAS_BACKEND)
	rm -rf outputs/smoke
	KERAS_BACKEND=$(KERAS_BACKEND) $(RUN) examples/paper/reproduce.py --all --smoke
	KERAS_BACKEND=$(KERAS_BACKEND) $(RUN) examples/paper/ih0.py --output outputs/smoke/ih0.png

# Two backends at a time; each shows what it has to say when it is done.
test: lint
	$(MAKE) --jobs=2 $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) \
		$(BACKENDS:%=test-%)

lint: .venv/installed-dev
	$(RUN) -m ruff format --check
	$(RUN) -m ruff check
	$(RUN) -m mypy

$(BACKENDS:%=test-%): test-%: .venv/installed-dev
	KERAS_BACKEND=$* $(RUN) -m pytest $(ARGS)

# What a night allows: 500 random layers, where `make test` draws fifty, every solver at every
# length, and what compiles for long.
test-nightly: $(BACKENDS:%=test-nightly-%)

$(BACKENDS:%=test-nightly-%): test-nightly-%: .venv/installed-dev
	KERAS_BACKEND=$* $(RUN) -m pytest tests/layers/test_random.py tests/layers/test_training_modes.py \
		tests/test_drop_in.py tests/solvers/test_trajectories.py \
		tests/benchmarks/test_solver_benchmarks.py --hypothesis-profile=nightly $(ARGS)

# Side by side with other implementations, installed here without what they depend on beyond this.
# DEER is on no registry; where its repository is out of reach, its tests skip and say so.
PEERS := pararnn-torch safetensors optimistix lineax equinox jaxtyping wadler_lindig
DEER := git+https://github.com/machine-discovery/deer@409140f

test-peers: .venv/installed-peers
	KERAS_BACKEND=torch $(RUN) -m pytest tests/peers -rs $(ARGS)
	KERAS_BACKEND=jax $(RUN) -m pytest tests/peers -rs $(ARGS)

.venv/installed-peers: .venv/installed-dev
	$(INSTALL) --no-deps $(PEERS)
	-$(INSTALL) --no-deps $(DEER)
	touch $@

# The layers on the Keras of tomorrow.
$(BACKENDS:%=test-keras-nightly-%): test-keras-nightly-%: .venv/installed-dev
	$(INSTALL) --upgrade --no-deps --target .venv/keras-nightly keras-nightly
	KERAS_BACKEND=$* PYTHONPATH=.venv/keras-nightly $(RUN) -m pytest tests/layers \
		tests/test_drop_in.py tests/test_streaming.py $(ARGS)

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
	touch $@

$(RUN):
	$(PYTHON) -m venv .venv

.venv/installed-demo-torch .venv/installed-dev: .venv/installed-torch

.venv/installed-torch: constraints.txt | $(RUN)
	test -z "$(TORCH_INDEX)" || \
		$(INSTALL) --no-deps --retries 1 --index-url $(TORCH_INDEX) torch 2> /dev/null || \
		echo "$(TORCH_INDEX) is out of reach; PyPI's PyTorch comes instead."
	touch $@

.venv/installed-demo-%: pyproject.toml constraints.txt | $(RUN)
	$(INSTALL) --editable ".[plots]" $(PACKAGE_$*)
	touch $@

.venv/installed-dev: pyproject.toml constraints.txt | $(RUN)
	$(INSTALL) --editable ".[dev,export,plots]" $(foreach backend,$(BACKENDS),$(PACKAGE_$(backend)))
	touch $@

clean:
	rm -rf .venv outputs
