"""What `motelog store` does with a folder."""
