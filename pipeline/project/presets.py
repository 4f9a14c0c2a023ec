"""Makes a preset the current params.yaml, for ``rrcm preset``.

``presets/<name>.yaml`` is a complete params.yaml. ``ablation-<name>`` is composed on demand from a
complete preset and its variants in presets/ablations/<name>.yaml.
"""

import io
import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from pipeline import checked
from pipeline.project import variants
from pipeline.workflow import lockfile
from rrcm.config import params, sections
from rrcm.config.params import Params
from rrcm.core.errors import ConfigError
from rrcm.core.files import read_bytes, write_text
from rrcm.core.ranges import require
from rrcm.core.registry import suggest
from rrcm.core.schema import read_yaml

PRESETS = Path("presets")
PREFIX = "ablation-"
BASE = "digits"
MADE = re.compile(r"`rrcm preset (\S+) --base (\S+)`")


def use(name: str, *, base: str | None, force: bool) -> str:
    """Make a preset the current params.yaml; return its description.

    If it is of another data set, dvc.lock changes, too: see `lockfile.switch`.

    Args:
        name: A complete preset, or ``ablation-`` and the name of a file of presets/ablations/.
        base: The complete preset that an ablation varies; None is ``digits``.
        force: Overwrite params.yaml even if it was edited.

    Raises:
        ConfigError: There is no such preset, it is not valid, or params.yaml is no copy of a
            preset, so that edits would be lost. Nothing is written then.
    """
    text, whole, described = resolve(name, base=base)
    if sections.PARAMS.exists() and not force and _edited():
        raise ConfigError(
            f"{sections.PARAMS} has been edited: save it elsewhere, or overwrite it with --force"
        )
    before = lockfile.switch(whole.data.name)
    write_text(sections.PARAMS, text)
    return f"{described}; results of {before} are kept in {lockfile.ASIDE}" if before else described


def resolve(name: str, *, base: str | None = None) -> tuple[str, Params, str]:
    """Return the text of a preset's params.yaml, its contents, and the preset's description.

    Raises:
        ConfigError: There is no such preset, or it is not valid.
    """
    complete = _complete()
    known = [*complete, *sorted(PREFIX + path.stem for path in PRESETS.glob("ablations/*.yaml"))]
    if name not in known:
        listed = ", ".join(known) or "nothing; run this in a checkout"
        raise ConfigError(f"{PRESETS}/ has no {name!r}, only {listed}.{suggest(name, known)}")
    if name in complete:
        require(base is None, f"--base: {name} is a complete preset; only an ablation has a base")
        path = PRESETS / f"{name}.yaml"
        return _read(name), params.load(path), str(path)
    base = base or BASE
    text = composed(name, base)
    try:
        whole = parsed(text)
        checked.check(whole)
    except ConfigError as error:
        raise ConfigError(f"{_file(name)}: {base}: not valid when composed: {error}") from None
    return text, whole, f"presets/{base}.yaml as {_file(name)} varies it"


def _complete() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def composed(name: str, base: str) -> str:
    """Return the text of an ablation's params.yaml, a function of the two files alone.

    Raises:
        ConfigError: ``base`` is not one of the presets that the ablation varies, or the file names
            what that preset does not have.
    """
    file = _file(name)
    bases = variants.read(file)
    if base not in bases:
        raise ConfigError(
            f"--base: {file} varies {', '.join(bases)}, and not {base!r}.{suggest(base, [*bases])}"
        )
    source = PRESETS / f"{base}.yaml"
    composition = variants.compose(read_yaml(source), bases[base], where=f"{file}: {base}")
    text = (
        f"# {bases[base].run} of {source}, and its variants of {file}.\n"
        f"# Made by `rrcm preset {name} --base {base}`; the two files say what the keys mean\n"
        "# and why these values are tried.\n\n"
    )
    return text + "\n\n".join(written({key: node}) for key, node in composition.items()) + "\n"


def parsed(text: str) -> Params:
    """Return the parameters that the text of a params.yaml has.

    Raises:
        ConfigError: It is not valid.
    """
    return params.parsed(YAML(typ="safe", pure=True).load(text))


def written(entries: dict[str, Any]) -> str:
    """Return entries as YAML: mappings and lists of plain values in one line."""
    yaml, text = YAML(typ="safe"), io.StringIO()
    yaml.default_flow_style, yaml.width = None, 200
    yaml.sort_base_mapping_type_on_output = False
    yaml.representer.ignore_aliases = lambda _: True
    yaml.dump(entries, text)
    return text.getvalue().rstrip()


def _edited() -> bool:
    """Return whether params.yaml is neither a complete preset nor an ablation as composed now."""
    text = read_bytes(sections.PARAMS, ConfigError).decode(errors="replace")
    if any(text == _read(name) for name in _complete()):
        return False
    header = MADE.search(text)
    try:
        return not (header and composed(*header.groups()) == text)
    except ConfigError:  # the files that it was composed from have changed, or are gone
        return True


def _read(name: str) -> str:
    return (PRESETS / f"{name}.yaml").read_text(encoding="utf-8")


def _file(name: str) -> Path:
    return PRESETS / "ablations" / f"{name.removeprefix(PREFIX)}.yaml"
