"""Admin HTTP listener of one process: health and metrics."""
