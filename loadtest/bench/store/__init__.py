"""Every figure of the store beside its floor; run the package with ``python -m``."""
