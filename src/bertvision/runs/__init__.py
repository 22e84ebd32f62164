"""Run directories: what lies where, checkpoints, predictions and the model card."""
