"""Answering without training: load a model, run it, decode, judge, select, extract."""
