"""`python -m fp8migrate` is the command `fp8migrate`."""

from fp8migrate.cli import main

main()
