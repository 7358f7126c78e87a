"""``python -m motelog``: the command line without an installed script."""

from motelog.cli.main import main

if __name__ == "__main__":
    main()
