"""Sources: what reads the world (files, HTTP, Prometheus) into our records."""
