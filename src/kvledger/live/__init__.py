"""Thin views of a running server."""
