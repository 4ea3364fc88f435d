"""``python -m kvledger``: the same as the command ``kvledger``."""

from kvledger.cli import main

if __name__ == "__main__":
    main()
