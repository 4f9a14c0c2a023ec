"""All drills, one after the other: ``python -m benchmarks.drills``, some 30 minutes on two cores.

Prints the tables of docs/reliability.md and docs/flows.md; exits with 1 if anything was lost for
good, executed, misread without an error, or ended in a traceback.
"""

import subprocess
import sys

DRILLS = {
    "kills": "Killed at single operations on files",
    "lock": "Signals while DVC writes dvc.lock",
    "corruption": "Damaged files",
    "hosts": "Faults of hosts, server and remote",
}


def main() -> None:
    """Run all drills, and print their tables."""
    failed = []
    for name, title in DRILLS.items():
        print(f"\n## {title}: `python -m benchmarks.drills.{name}`\n", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.drills.{name}"]).returncode:
            failed.append(name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
