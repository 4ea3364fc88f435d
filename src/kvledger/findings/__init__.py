"""What to change: each finding with a code, the memory it gives back, and what gets worse."""
