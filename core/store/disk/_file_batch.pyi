def write(pieces: list[tuple[str, int, bytes]], file_bytes: int) -> tuple[int, int]:
    """Write pieces (path, position, bytes) of files that have ``file_bytes`` each.

    A missing file is made, with its directory and the one above; a shorter one is extended with
    zeros. Nothing is synced. Returns how many pieces were written before one failed, and the
    errno of that one, 0 if all were written. ValueError for a piece outside its file; then nothing
    was written.
    """

def sync(paths: list[str]) -> tuple[int, int]:
    """Block until files or directories are on disk; returns as ``write`` does."""
