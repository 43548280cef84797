"""Benchmarks: `make bench`. Each claim of speed beside its peer, measured in one run; nothing here passes or fails."""
