"""``python -m kvledger``."""

from kvledger.cli import main

main()
