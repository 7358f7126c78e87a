"""Records: the layout that the log holds and a pull answers, and the kernels for it."""
