"""Admin HTTP endpoints: health and metrics."""
