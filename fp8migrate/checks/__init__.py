"""Checks: evidence in, CheckResult out. Each names what it needs; absence is never a pass."""
