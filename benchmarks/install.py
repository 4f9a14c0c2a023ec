"""What an installation of the core takes: sizes by package, and the time of ``import rrcm``.

``python -m benchmarks.install`` builds the wheel and installs it with its dependencies into an
empty environment, as pip finds them, then weighs that environment and the one that runs this.
What torch needs is counted apart. A size is that of a package's files, compiled ones included.

    python -m benchmarks.install --extra cpu
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
MB = 1e6
SHOWN = 12  # packages that are listed
TIMES = 11  # starts of Python
IMPORT = "import time; t = time.perf_counter(); import rrcm; print(time.perf_counter() - t)"

Packages = dict[str, Distribution]


def packages(site: Path | None = None) -> Packages:
    """The distributions of a folder, by default of this environment, without rrcm."""
    found = distributions() if site is None else distributions(path=[str(site)])
    named = {canonicalize_name(one.name): one for one in found}
    return {name: one for name, one in named.items() if name != "rrcm"}


def size(one: Distribution) -> float:
    """The MB of the files of a distribution."""
    paths = (Path(str(one.locate_file(file))) for file in one.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file()) / MB


def below(name: str, every: Packages) -> set[str]:
    """A package and all that it needs, of those that are installed."""
    found: set[str] = set()
    left = [name]
    while left:
        one = left.pop()
        if one in every and one not in found:
            found.add(one)
            needed = map(Requirement, every[one].requires or [])
            left += [
                canonicalize_name(each.name)
                for each in needed
                if not each.marker or each.marker.evaluate({"extra": ""})
            ]
    return found


def weigh(every: Packages) -> tuple[dict[str, float], float]:
    """MB of each package that torch does not need, the largest first, and MB of those it needs."""
    torch = below("torch", every)
    sizes = {name: size(one) for name, one in every.items()}
    others = {name: mb for name, mb in sizes.items() if name not in torch}
    ordered = dict(sorted(others.items(), key=lambda item: -item[1]))
    return ordered, sum(sizes[name] for name in torch)


def pip(*words: str | Path) -> None:
    """Run pip of this environment."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*command, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def installed(folder: Path, extras: list[str]) -> tuple[Path, Path]:
    """Build the wheel and install it into an empty environment; its Python and site-packages."""
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("rrcm-*.whl")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env/bin/python"
    pip("--python", python, "install", f"{wheel}[{','.join(extras)}]" if extras else wheel)
    (site,) = folder.glob("env/lib/python*/site-packages")
    return python, site


def seconds(python: Path, folder: Path) -> list[float]:
    """Times of ``import rrcm`` in fresh processes, sorted; the first start is not counted."""
    command = [python, "-I", "-c", IMPORT]
    said = [
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        for _ in range(TIMES + 1)
    ]
    return sorted(map(float, said[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--extra", action="append", default=[], help="extra; may be repeated")
    extras = parser.parse_args().extra
    whole, torch = weigh(packages())
    with tempfile.TemporaryDirectory() as folder:
        python, site = installed(Path(folder), extras)
        core, own = weigh(packages(site))
        times = seconds(python, Path(folder))
    name = f"rrcm[{','.join(extras)}]" if extras else "rrcm"
    share = sum(core.values()) / sum(whole.values())
    print(f"| | packages | MB |\n| --- | ---: | ---: |\n| torch and what it needs | | {own:,.0f} |")
    print(f"| `{name}` besides | {len(core)} | {sum(core.values()):,.0f} |")
    for package, mb in [*core.items()][:SHOWN]:
        print(f"| … {package} | | {mb:,.0f} |")
    print(f"| this environment besides | {len(whole)} | {sum(whole.values()):,.0f} |")
    print(f"\n{100 * share:.0f} % of this environment; torch has {torch:,.0f} MB in it")
    low, middle, high = (1e3 * t for t in (times[0], statistics.median(times), times[-1]))
    print(f"import rrcm: {middle:.1f} ms ({low:.1f} – {high:.1f}), {TIMES} starts")


if __name__ == "__main__":
    main()
