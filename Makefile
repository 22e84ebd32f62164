# Everything sets itself up: `make demo` and `make test` work on a fresh clone with Python 3.11 or newer.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test check docs docs-serve release chromium clean
setup: .venv/dev.ready

# .venv/EXTRA.ready is made when that extra of pyproject.toml is installed, and made again when the versions change.
.venv/%.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed (PYTHON=... chooses one)"; exit 1; }
	@echo "Setting up .venv for $* (a few minutes the first time)..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable '.[$*]'
	@touch $@

demo: .venv/demo.ready  ## fit a real encoder on film reviews and on questions, and query it
	@$(BIN)/bertvision demo && $(BIN)/bertvision demo --questions

test: .venv/dev.ready chromium  ## all tests, offline
	@HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -n auto --dist loadfile

check: .venv/dev.ready  ## formatting, lint, types, tests
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy
	@$(MAKE) --no-print-directory test

docs: .venv/docs.ready  ## regenerate docs/cli.md from the program and build the site into site/
	@$(BIN)/python -c 'from bertvision.cli import reference; print(reference(), end="")' > docs/cli.md.tmp && mv docs/cli.md.tmp docs/cli.md
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "Open site/index.html"

docs-serve: .venv/docs.ready  ## the site with live reload
	@$(BIN)/mkdocs serve

release: check .venv/release.ready  ## build and check the distributions in dist/
	@version=$$($(BIN)/python -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])'); \
	  grep -q "^## $$version - [0-9]" CHANGELOG.md || { echo "CHANGELOG.md has no dated entry '## $$version - YYYY-MM-DD'"; exit 1; }
	@rm -rf dist && $(BIN)/python -m build && $(BIN)/twine check --strict dist/*

# The report's page is tested in a real browser if there is one or Debian's can be installed.
chromium:
	@if ! command -v chromium >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "Installing chromium, for the tests of the report (a minute)..."; \
	    export DEBIAN_FRONTEND=noninteractive; (apt-get install -qq -y --no-install-recommends chromium || \
	     (apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium)) >/dev/null 2>&1 || true; \
	  fi; \
	  command -v chromium >/dev/null || echo "No chromium: the report's page is not tested in a browser."; \
	fi

clean:
	rm -rf .venv runs site dist build
