"""What would have happened: the same traffic under every memory policy."""
