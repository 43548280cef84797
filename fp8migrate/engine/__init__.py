"""The loop, and what it needs to carry out jobs: supervision, the report folder, stop requests, progress."""
