"""Hidden states: what heads read of an encoder, and the pass that computes them."""
