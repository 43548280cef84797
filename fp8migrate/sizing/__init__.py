"""What a plan costs, before anything runs: parameters, FLOPs, layers that get FP8, hours."""
