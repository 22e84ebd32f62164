"""Moved to `bertvision.formats`. Delete this file once cli/reporting.py imports `size` from there."""

from bertvision.formats import size as size
