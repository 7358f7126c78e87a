def write(pieces: list[tuple[str, int, bytes]], file_bytes: int) -> tuple[int, int]:
    """Write pieces (path, position, bytes) of files that have ``file_bytes`` each.

    A file that is missing is made, and its directory and the one above; one that is shorter gets
    zeros. Nothing is synced. Returns how many pieces were written before one failed, and the
    errno of that one, 0 when none did. ValueError for a piece outside its file; then nothing was
    written.
    """

def sync(paths: list[str]) -> tuple[int, int]:
    """Block until files or directories are on disk; returns as ``write`` does."""
