"""Every figure of the store beside its floor; ``python -m tests.bench.store`` runs them."""
