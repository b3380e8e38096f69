PYTHON := .venv/bin/python
BENCHES := $(wildcard scripts/bench_*.py)
SHELL_FILES := $(wildcard docker/*.sh examples/*.sh examples/slurm/* scripts/*.sh scripts/lib/*.sh tests/npu_simulated/cann/*.sh) .ci/run

.DEFAULT_GOAL := check
.PHONY: setup format lint types arch test e2e bench docs check nightly mutate faults

setup: ## create .venv with the pinned CPU environment
	bash scripts/install.sh

format: ## rewrite the code in the project's format
	.venv/bin/ruff check --fix --exit-zero .
	.venv/bin/ruff format .

lint: ## style, spelling, shell
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/codespell
	.venv/bin/shellcheck -x -P SCRIPTDIR $(SHELL_FILES)

types: ## mypy --strict
	.venv/bin/mypy

arch: ## import layers, then the house rules
	.venv/bin/lint-imports --no-logo
	$(PYTHON) -m pytest -q tests/unit/test_house_rules.py

test: ## unit tests
	$(PYTHON) -m pytest tests/unit -m "not gpu and not npu and not faults and not nightly"

e2e: ## several processes, and Ray + Megatron-core + vLLM, on CPU
	$(PYTHON) -m pytest tests/distributed tests/npu_simulated tests/e2e -m "not gpu and not npu and not faults and not nightly"

faults: ## end, stop and disturb runs in every phase; their results must not change
	$(PYTHON) -m pytest -s -m faults tests/e2e

mutate: ## plant faults one at a time; the tests must find each
	$(PYTHON) scripts/mutate.py

bench: ## every benchmark
	@test -n "$(BENCHES)" || { echo "no scripts/bench_*.py" >&2; exit 1; }
	@set -e; for bench in $(BENCHES); do echo "== $$bench"; $(PYTHON) "$$bench"; done

docs: ## spelling and links of the documentation
	.venv/bin/codespell docs *.md
	$(PYTHON) -m pytest -q tests/unit/test_house_rules.py -k markdown

check: ## everything that CI runs
	bash scripts/test.sh

nightly: ## everything that CI runs, all cases of the tests, and planted faults; PART=1/4 is a quarter
	bash scripts/test.sh --nightly $(if $(PART),--part $(PART))
