"""Run the command line with `python -m covertfl`."""

from covertfl.cli.app import main

if __name__ == "__main__":
    main()
