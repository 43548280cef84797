"""Run directories: written by workers, read back as records."""
