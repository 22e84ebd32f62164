# Everything sets itself up: `make demo` and `make test` work on a fresh clone with Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin
# Made when the environment is complete; pyproject.toml and constraints.txt are what it depends on.
READY := .venv/ready

.PHONY: setup chromium demo test check docs clean
setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (PYTHON=... chooses one)"; exit 1; }
	@echo "Setting up .venv (a few minutes the first time)..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

demo: $(READY)  ## fit a real encoder on film reviews and on questions, and ask it about new ones
	@$(BIN)/bertvision demo && $(BIN)/bertvision demo --questions

# The report's page is tested in a real browser where there is one, or where Debian's can be installed; else not.
chromium:
	@if ! command -v chromium >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing chromium, for the tests of the report (a minute)..."; \
	    export DEBIAN_FRONTEND=noninteractive; (apt-get install -qq -y --no-install-recommends chromium || \
	     (apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium)) >/dev/null 2>&1 || true; \
	  fi; \
	  command -v chromium >/dev/null || echo "No chromium: the report's page is not tested in a browser."; \
	fi

test: $(READY) chromium  ## all tests, offline
	@HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto --dist loadfile

check: $(READY)  ## formatting, lint, types, tests
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy
	@$(MAKE) --no-print-directory test

docs: $(READY)  ## regenerate docs/cli.md from the program
	@$(BIN)/python -c 'from bertvision.cli import reference; print(reference(), end="")' > docs/cli.md.tmp && mv docs/cli.md.tmp docs/cli.md

clean:
	rm -rf .venv runs
