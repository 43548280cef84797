"""Run every benchmark, or those named: `python -m tests.benchmarks help worker`."""

import sys

from tests.benchmarks import advisor, commands, emulation, error_rates, fuzz, overhead, reading, worker

BENCHMARKS = {
    "help": commands.run,
    "worker": worker.run,
    "overhead": overhead.run,
    "reading": reading.run,
    "advisor": advisor.run,
    "emulation": emulation.run,
    "emulation-compiled": emulation.run_compiled,
    "memory": emulation.run_memory,
    "error_rates": error_rates.run,
    "fuzz": fuzz.run,
}


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - BENCHMARKS.keys())
    if unknown:
        print(f"unknown: {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        print(f"\n{name}")
        for what, figure in BENCHMARKS[name]():
            print(f"  {what:<62} {figure}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
