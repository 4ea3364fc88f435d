"""Where records come from: files, HTTP and Prometheus."""

"""Sources: what reads the world (files, HTTP, Prometheus) into our records."""
