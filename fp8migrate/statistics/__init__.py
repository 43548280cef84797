"""Statistics of paired runs: arrays in, numbers out. Knows nothing of plans, records or verdicts.

The unit of replication is the pair of runs, never the step (PARITY.md 1).
"""
