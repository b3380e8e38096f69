"""One page per run: learning curves, times, and samples."""
