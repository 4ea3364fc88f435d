"""The command line: only wiring. Each subcommand is imported when it is called."""

from kvledger.cli.main import main

__all__ = ["main"]
