"""Everything that needs torch. Nobody imports this package: the engine starts it as `python -m fp8migrate.worker`."""
