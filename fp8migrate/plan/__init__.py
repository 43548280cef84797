"""The plan: what the user wants to find out, as frozen settings."""
