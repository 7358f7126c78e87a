"""The broker's tables: topics, groups, offsets, locks, and the files that keep them."""
