# make setup | demo | check | browser | test | test-faults | test-exhaustive | bench | bench-check | format | quotes
#      picture | requirements | protos | site | template | launch | wheel | clean
#
# `setup` needs Python 3.11 to 3.13. It uses uv if installed, otherwise venv and pip.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.complete
UV     := $(shell command -v uv 2>/dev/null)
# The first interpreter of a supported version.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)

.PHONY: setup demo check browser test test-faults test-exhaustive bench bench-check format quotes picture requirements protos site template launch wheel clean
.DEFAULT_GOAL := setup

# Tests start hundreds of processes: what the first of them compiles is kept, whatever the caller's shell says.
check test test-faults test-exhaustive: export PYTHONDONTWRITEBYTECODE :=

# The Pub/Sub emulator starts in half the time without the compiler that pays after minutes.
test test-faults test-exhaustive: export JAVA_TOOL_OPTIONS := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC

# One case of each kind, and fewer random examples of properties.
FEW := -m 'not exhaustive' --hypothesis-profile=few
PURE_TESTS := tests/core tests/formats tests/charts tests/test_docs.py

setup: $(STAMP)

# The stamp is written last: an interrupted setup starts again from scratch.
$(STAMP): tests/requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11, 3.12 or 3.13 on the PATH; install one, or run make PYTHON=/path/to/python3" >&2; exit 1; }
	rm -rf $(VENV)
ifneq ($(UV),)
	uv venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
	uv pip install --quiet --python $(BIN)/python --require-hashes -r tests/requirements.txt
	uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
else
	$(PYTHON) -m venv $(VENV)
	@# --no-deps: the file names every package. Old releases of pip look for newer ones that an extra would allow.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r tests/requirements.txt
	@# setuptools warns about every editable install.
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
endif
	touch $(STAMP)

# SERVE=1 keeps it running, with a page for the browser; EMBEDDED=1 uses the built-in emulator.
demo: setup
	$(BIN)/tidetable demo $(if $(SERVE),--serve) $(if $(EMBEDDED),--embedded)

# For every save, in under a minute: no emulators and no pipelines.
check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not exhaustive and not slow' --hypothesis-profile=fewest $(PURE_TESTS)

# Chromium, in which the page of tidetable serve is tested: Debian's package, if no browser is there yet.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends chromium; } || \
		{ echo "make: the page's tests need Chromium; install your system's package chromium" >&2; exit 1; }

# Three processes on two cores: tests often wait for servers. The longest test comes first. Without a browser, the tests
# of the page say what to install, and the others run. Tests of clients, jobs and tables run on Google's emulators, those
# that need a table alone on the built-in one, which some of the former compare with Google's. With MIXED= everything
# runs on Google's, as in continuous integration.
MIXED := --mixed
test: setup
	@-$(MAKE) --silent browser
	$(BIN)/python -m pytest -n 3 --dist worksteal $(MIXED) $(FEW) \
		tests/test_tutorial.py $(filter-out tests/faults/ tests/__pycache__/,$(wildcard tests/*/ tests/test_*.py))

# Three processes, since outages are waited for; the longest tests first, so that all finish at about the same time.
test-faults: setup
	$(BIN)/python -m pytest -n 3 --dist worksteal tests/faults/test_kill.py tests/faults/test_poison.py tests/faults/test_*.py

# Every schema and encoding where the other targets try one of each kind, and more random examples; more of the faults on
# the built-in emulator.
test-exhaustive: setup
	$(BIN)/python -m pytest -q -n 2 --dist worksteal tests/core tests/formats tests/charts tests/model
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m exhaustive tests/backfill tests/cloud tests/job tests/local tests/plan \
		tests/repair tests/serve tests/transforms tests/test_packaging.py
	$(BIN)/python -m pytest -n 3 -q --embedded tests/faults/test_kill.py tests/faults/test_pubsub_away.py tests/faults/test_restart.py

# Takes under ten minutes, even next to other programs; `bench-check` compares the last result with its lower bounds.
bench: setup
	$(BIN)/python -m benchmarks.bench

bench-check: setup
	$(BIN)/python -m benchmarks.bench --check

# The pages of docs/ as a site, in build/site.
site: setup
	$(BIN)/mkdocs build --quiet --strict

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Refreshes the blocks of the documentation that quote what code prints.
quotes: setup
	$(BIN)/python -m tests.quotes

# The README's picture of the page, docs/page.png.
picture: setup browser
	$(BIN)/python -m tests.picture

# Compiled for every supported Python at once, without index addresses: what the image installs, with the extra `beam`,
# what `make setup` installs, with all extras, and what lists the packages of a release.
requirements:
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make requirements" --group build --extra beam pyproject.toml -o requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make requirements" --group build --group dev --all-extras -c requirements.txt pyproject.toml -o tests/requirements.txt
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make requirements" --group sbom -o .github/sbom-requirements.txt

# The generated code is committed; a test compares it with protos/. protoc compiles each file under its full path, which
# protobuf registers it by; then it moves into our package.
protos: setup
	mkdir -p build/protos
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=build/protos --pyi_out=build/protos \
		tidetable/v1/sensor_event.proto tidetable/v1/window_result.proto
	mv build/protos/tidetable/v1/*_pb2.py* pipeline/proto

# The Flex Template: `template` builds, pushes and publishes it, `launch` runs it. DRY_RUN=1 checks and prints.
#   both      PROJECT REGION REPOSITORY  [BUCKET=$PROJECT-tidetable-staging] [TAG=version-commit] [MACHINE_TYPE]
#             [MAX_WORKERS]
#   template  [BUILDER=cloud|docker]
#   launch    PARAMETERS='name=value ...'  [JOB] [SERVICE_ACCOUNT] [LAUNCHER_MACHINE_TYPE] [NUM_WORKERS] [MIN_WORKERS]
#             [SUBNETWORK] [PRIVATE=1] [KMS_KEY] [LABELS='name=value ...'] [PIPELINE_OPTIONS='name=value ...']
#             [SERVICE_OPTIONS='name[=value] ...'] [AT_LEAST_ONCE=1] [UPDATE=1 [SNAPSHOT=1]]
# flex.sh reads the variables from the environment, to which make exports its command-line variables: no value passes
# through a shell's quoting.
template launch: export GIVEN = $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))
template launch:
	@templates/flex.sh $@

# Builds the package into dist/, with the setuptools that requirements.txt pins: an isolated build would download the
# newest. setuptools copies what an earlier build left in build/lib, even modules that have been removed.
wheel: setup
	rm -rf build/lib
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
