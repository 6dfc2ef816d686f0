"""`python -m covertfl` is the command line."""

from covertfl.cli.app import main

if __name__ == "__main__":
    main()
