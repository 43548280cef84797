"""Frozen data with sources: number formats, scaling recipes, GPUs. No code here decides anything."""
