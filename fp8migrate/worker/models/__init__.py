"""Models that the built-in trainer trains."""
