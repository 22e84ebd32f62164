"""The paper's experiments at any scale, and its tables beside ours: `bertvision reproduce`."""
