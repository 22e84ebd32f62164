"""A linear model on counted words: what a text says without any encoder. It costs seconds, and errs differently."""
