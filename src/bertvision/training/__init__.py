"""Training: the loop around the encoder, heads that ride along or are polished, and the choice among them."""
