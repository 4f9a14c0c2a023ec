"""`make audit`: known vulnerabilities of what the locks name, by pip-audit.

Exit code 0: none is known. 1: some are, each in a line. 2: nothing is known of some or all of the
packages, because the database could not be reached or does not have them; this is no success.
"""

import json
import subprocess
import sys

LOCK = "requirements-gpu.lock"  # has all of requirements.lock, and torch as the database names it
COMMAND = "pip_audit --format json --progress-spinner off --require-hashes --disable-pip"


def main() -> int:
    """Ask, say what came of it in lines, and return the exit code."""
    done = subprocess.run(
        [sys.executable, "-m", *COMMAND.split(), "--requirement", LOCK],
        capture_output=True,
        text=True,
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except ValueError:
        why = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        print(f"audit: nothing was checked; the database was out of reach ({why[:200]})")
        return 2
    found = [(one, flaw) for one in packages for flaw in one.get("vulns", ())]
    for one, flaw in found:
        mended = ", ".join(flaw["fix_versions"]) or "no version"
        print(f"audit: {one['name']} {one['version']}: {flaw['id']}, mended in {mended}")
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    if unknown:
        few = ", ".join(unknown[:3]) + ", …" * (len(unknown) > 3)
        print(
            f"audit: {len(unknown)} of {len(packages)} packages were not checked ({few}):", end=""
        )
        print(" the database does not have them, or gives no answers here")
    if not found and not unknown:
        print(f"audit: {len(packages)} packages, no known vulnerability")
    return 1 if found else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
