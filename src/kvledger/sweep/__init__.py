"""Many replays: a grid of settings as cells, run over processes or a cluster, their results as one table."""
