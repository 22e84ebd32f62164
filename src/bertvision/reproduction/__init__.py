"""The paper's experiments at any scale, with its results beside ours: `bertvision reproduce`."""
