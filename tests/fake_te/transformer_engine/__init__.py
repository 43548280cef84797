"""A stand-in for Transformer Engine in plain torch, for machines without a GPU: its names and signatures, none of its code.

FP8 is a rounding of operands to E4M3 with a scale per tensor; what matters here is who is called with what.
"""
