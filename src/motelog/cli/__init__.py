"""Command line, one file per noun or verb; each imports its subject only when called."""
