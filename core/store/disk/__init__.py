"""The only door to the operating system: files, their pages, batches of writes, the space left."""
