"""Metrics: how good predictions are, with bootstrap intervals."""
