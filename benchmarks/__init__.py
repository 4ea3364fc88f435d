"""Benchmarks that anybody can run: ``make bench``."""
