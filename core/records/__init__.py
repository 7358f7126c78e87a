"""Records: their layout in the log and in pull answers, and the kernels for it."""
