"""The kinds of findings, by subject."""
