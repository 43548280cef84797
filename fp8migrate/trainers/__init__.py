"""Trainers: a task becomes a command line. One file a trainer; this registry is the only place that lists them."""
