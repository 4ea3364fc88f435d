"""What each engine plans, logs and exports: one folder or file an engine, text in, records out."""
