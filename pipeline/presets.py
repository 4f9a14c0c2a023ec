"""Presets: complete params.yaml files, one of which is the current one."""

from pathlib import Path

from rrcm import config
from rrcm.errors import ConfigError
from rrcm.files import write_text
from rrcm.registry import suggest

PRESETS = Path("presets")


def use(name: str, *, force: bool) -> None:
    """Make ``presets/<name>.yaml`` the current params.yaml.

    Raises:
        ConfigError: There is no such preset, or params.yaml is nobody's copy and would be lost.
    """
    known = {path.stem: path.read_text(encoding="utf-8") for path in PRESETS.glob("*.yaml")}
    if name not in known:
        listed = ", ".join(sorted(known)) or "nothing; run this in a checkout"
        raise ConfigError(
            f"{PRESETS}/ has no {name!r}, only {listed}.{suggest(name, sorted(known))}"
        )
    current = config.PARAMS
    edited = current.exists() and current.read_text(encoding="utf-8") not in known.values()
    if edited and not force:
        raise ConfigError(
            f"{current} has been edited: save it elsewhere, or overwrite it with --force"
        )
    write_text(current, known[name])
