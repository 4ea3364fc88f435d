"""Records in, text out."""
