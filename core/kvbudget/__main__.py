"""``python -m kvbudget`` is the command line."""

from kvbudget.cli import main

if __name__ == "__main__":
    main()
