"""Samples over time to ledgers: the laws of a running server."""
