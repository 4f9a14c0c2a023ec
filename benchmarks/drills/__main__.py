"""All drills, one after the other: ``python -m benchmarks.drills``, some 15 minutes on two cores.

Prints the tables of docs/reliability.md; exits with 1 if anything was lost, executed, misread
without an error, or ended in a traceback.
"""

import subprocess
import sys

DRILLS = {
    "kills": "Killed at single operations on files",
    "lock": "Signals while DVC writes dvc.lock",
    "corruption": "Damaged files",
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
