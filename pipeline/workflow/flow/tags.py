"""Tags of stages on Prefect's pages: model, method and sigma from params.yaml."""

from rrcm.config.params import Params


def of(stage: str, whole: Params) -> list[str]:
    """Model, method and sigma of a stage such as ``train@tiny-rrcm-s025``, as far as it has them.

    ``sigma`` is that of training; ``eval-sigma`` is that of smoothing, if it differs.
    """
    key = stage.partition("@")[2].partition(":")[0]  # a piece has the tags of its stage
    evaluation = whole.evals.get(key)
    member = whole.members.get(key)
    name = evaluation.run if evaluation else member.run if member else key
    if run := whole.classifiers().get(name):
        found = [f"model:{run.model}", f"method:{run.method}", f"sigma:{run.sigma:g}"]
        if evaluation and evaluation.sigma != run.sigma:
            found.append(f"eval-sigma:{evaluation.sigma:g}")
        return found
    trained = whole.pretrain.get(key) or whole.denoisers.get(key)
    return [f"model:{trained.model}"] if trained else []
