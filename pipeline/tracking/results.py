"""Finds the results of a training: its validation accuracy, and its certified accuracy."""

from pathlib import Path

from pipeline.tracking import trainings
from pipeline.tracking.trainings import Identity
from rrcm.cli.dvc_lock import Lock, md5, tree
from rrcm.core.errors import DataError
from rrcm.core.files import read_json

METRICS = Path("metrics")


def results(identity: Identity) -> tuple[dict[str, float], list[str]]:
    """The results of a finished training by name, and files of results that are of another one.

    Names are ``validation_accuracy`` and, for each sigma that the training is evaluated at, those
    of ``metrics/<evaluation>.json``, as in ``sigma_0.5/acr``. Guarantee: by dvc.lock, every stage
    from the training to the report read what the stage before it wrote, and ``log.csv`` and the
    metrics are the ones that these stages wrote.

    Raises:
        RrcmError: dvc.lock or a file of results is damaged.
    """
    accuracy = trainings.provenance(identity.stage).get("validation_accuracy")
    found = {} if accuracy is None else {"validation_accuracy": float(accuracy)}
    others: list[str] = []
    lock = Lock()
    for evaluation, sigma in _evaluations(lock, identity):
        path = METRICS / f"{evaluation}.json"
        if not path.exists():
            continue
        if _belongs(lock, identity, evaluation):
            numbers = read_json(path)
            if not isinstance(numbers, dict):
                raise DataError(f"{path}: damaged (no mapping); `dvc repro report`")
            found |= {f"sigma_{sigma:g}/{key}": float(value) for key, value in numbers.items()}
        else:
            others.append(str(path))
    return found, others


def _evaluations(lock: Lock, identity: Identity) -> list[tuple[str, float]]:
    """The evaluations of a run, and their sigmas, as dvc.lock has them."""
    if not identity.stage.startswith("train@"):
        return []
    found = []
    for stage in lock.stages:
        group, _, name = stage.partition("@")
        asked = lock.params(stage).get(f"evals.{name}", {})
        if group == "sample" and asked.get("run") == identity.name:
            found.append((name, float(asked["sigma"])))
    return found


def _belongs(lock: Lock, identity: Identity, evaluation: str) -> bool:
    """Whether the metrics of an evaluation are those of the training whose files are here."""
    run, made = identity.name, {path: hashed for path, (_, hashed) in lock.outputs.items()}
    log = trainings.log_of(identity)
    read = [
        (f"export@{run}", f"models/{run}/model.safetensors"),
        (f"sample@{evaluation}", f"models/{run}/model.safetensors"),
        (f"sample@{evaluation}", f"onnx/{run}.onnx"),
        (f"certify@{evaluation}", f"votes/{evaluation}.jsonl"),
    ]
    certified = {Path(p).name: made[p] for p in made if p.startswith("certificates/")}
    metrics = {path.name: md5(path) for path in METRICS.glob("*.json")}
    return (
        made.get(log.as_posix()) == md5(log)
        and all(path in made and lock.read(stage, Path(path)) == made[path] for stage, path in read)
        and lock.read("report", Path("certificates")) == tree(certified)
        and made.get(METRICS.as_posix()) == tree(metrics)
    )
