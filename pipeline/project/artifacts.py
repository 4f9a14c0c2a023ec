"""Lists the classifiers of params.yaml as DVC artifacts, so that others can fetch them by name.

``onnx/dvc.yaml`` lists every classifier that params.yaml certifies; docs/remotes.md says how one is
released and fetched. DVC has no ``foreach`` for artifacts, so the list is written whenever the runs
of params.yaml change: by `rrcm preset` and `rrcm import`.
"""

import io
from pathlib import Path

from ruamel.yaml import YAML

from rrcm.config.params import Params
from rrcm.core.files import write_text

LISTED = Path("onnx/dvc.yaml")
HEAD = "# Written by `rrcm preset` and `rrcm import`: the classifiers that params.yaml certifies.\n"


def write(whole: Params) -> None:
    """Write the list of the classifiers of ``whole``, the current params.yaml."""
    write_text(LISTED, text(whole))


def text(whole: Params) -> str:
    """Return the list: the ONNX file of each classifier that is certified, model and method."""
    classifiers = whole.classifiers()
    listed = {}
    for name in dict.fromkeys(evaluation.run for evaluation in whole.evals.values()):
        found = classifiers[name]
        listed[name] = {
            "path": f"{name}.onnx",
            "type": "model",
            "labels": [found.model, found.method],
            "desc": f"{found.model} by {found.method} at sigma {found.sigma:g}",
        }
    stream = io.StringIO()
    YAML().dump({"artifacts": listed}, stream)
    return HEAD + stream.getvalue()
