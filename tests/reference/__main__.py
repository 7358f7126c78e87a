"""Writes docs/reference from the code.

python -m tests.reference
"""

from __future__ import annotations

from tests.reference.pages import FOLDER, PAGES


def main() -> None:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
