"""What the path of a released log says: data set, method, constants, sigma.

``PATTERNS`` has one pattern for each folder layout of a repository. A path that none of them
matches whole is refused, never guessed.
"""

import re
from dataclasses import dataclass

from rrcm.core.errors import DataError

DRAWS, ALPHA = 100_000, 0.001  # as the field states them
SIZES = {"mnist": 10_000, "cifar10": 10_000, "cifar100": 10_000, "imagenet": 50_000}
NUMBER = r"\d+(?:\.\d+)?"
TAIL = rf"noise_(?P<sigma_train>{NUMBER})/(?P<split>test|train)/sigma_(?P<sigma>{NUMBER})"
NOISE = rf"noise_(?P<sigma>{NUMBER})"
SALMAN = r"Hadisalman__smoothing-adversarial/data/certify/"
ATTACK = r"(?P<attack>PGD|DDN)_(?P<T>\d+)steps?"
EPS = r"eps_(?P<eps>\d+)/"
CATRS = r"alinlab__smoothing-catrs/data/"
METHOD = r"(?P<method>[a-z_-]+)"
JEONG = r"jh-jeong__smoothing-consistency/data/certify/(?P<dataset>mnist|cifar10)/"
PGD = rf"(?P<eps>{NUMBER})_(?P<T>\d+)_(?P<warmup>\d+)/"
PAIRS = rf"num_(?P<m>\d+)/lbd_(?P<lbd>{NUMBER})/eta_(?P<eta>{NUMBER})/"
NETWORK = rf"(?:cifar_(?P<network>resnet\d+|densenet40)/)?{NOISE}(?:_(?P<run>\d+(?:_o)?))?"
SMOOTHMIX = r"jh-jeong__smoothmix/data/certify/"
PATTERNS = [  # a source, and one of its layouts
    (
        "Salman 2019",
        rf"{SALMAN}(?P<best>best_models/cifar10/ours\w*/)?(?P<dataset>cifar10)/"
        rf"(?P<pretrained>finetune_cifar_from_imagenetPGD2steps/)?(?P<selftrained>self_training[/_])?"
        rf"{ATTACK}(?:_30epochs)?(?:_multiNoiseSamples|_multinoise)?(?P<base>_baseAttackExp)?/"
        rf"(?:(?P<m>\d+)-multitrain/|(?P<noise>with|without)_noise/|weight_(?P<w>{NUMBER})/)?"
        rf"{EPS}cifar10/(?P<network>resnet110)/{TAIL}",
    ),
    (
        "Salman 2019",
        rf"{SALMAN}(?P<best>best_models/)?(?P<dataset>imagenet)/{ATTACK}/(?:imagenet/)?{EPS}"
        rf"(?P<network>resnet50)/{TAIL}",
    ),
    (
        "Salman 2019",
        rf"{SALMAN}(?P<best>best_models/)?(?P<dataset>imagenet|cifar10)/(?:replication|cohen)/"
        rf"(?P<network>resnet50|resnet110)/{TAIL}",
    ),
    (
        "Cohen 2019",
        r"(?:Hadisalman__smoothing-adversarial/data_cohen/certify|cohen_2019)/"
        rf"(?P<dataset>imagenet|cifar10)/(?P<network>resnet50|resnet110)/{TAIL}",
    ),
    ("Jeong 2023", rf"{CATRS}(?P<dataset>cifar100?)/noise_{NUMBER}/{METHOD}/{NOISE}\.tsv"),
    ("Jeong 2023", rf"{CATRS}(?P<dataset>mnist|imagenet)(?:/noise_{NUMBER})?/{NOISE}\.tsv"),
    (
        "Jeong 2023",
        rf"{CATRS}(?P<dataset>cifar10|mnist)c/(?:severity_(?P<severity>\d)/)?{METHOD}/"
        r"(?P<corruption>\w+)\.tsv",
    ),
    (
        "Sun 2025",
        r"eth-sri__acr-weakness/data/certify/(?P<dataset>imagenet|cifar10)/"
        rf"{METHOD}/{NOISE}(?:\.tsv)?",
    ),
    ("Jeong 2020", rf"{JEONG}(?P<method>cohen)/{NETWORK}"),
    ("Jeong 2020", rf"{JEONG}(?P<method>stab)/lbd_(?P<lbd>{NUMBER})/{NETWORK}"),
    ("Jeong 2020", rf"{JEONG}(?P<method>salman)/pgd_{PGD}num_(?P<m>\d+)/{NETWORK}"),
    (
        "Jeong 2020",
        rf"{JEONG}(?P<method>macer)(?:_deferred(?P<deferred>\d+))?/num_(?P<m>\d+)/"
        rf"lbd_(?P<lbd>{NUMBER})/gamma_(?P<gamma>{NUMBER})/beta_(?P<beta>{NUMBER})/{NETWORK}",
    ),
    ("Jeong 2020", rf"{JEONG}(?P<method>consistency)/cohen/{PAIRS}{NETWORK}"),
    ("Jeong 2020", rf"{JEONG}(?P<method>consistency/salman)_{PGD}{PAIRS}{NETWORK}"),
    (
        "Jeong 2021",
        rf"{SMOOTHMIX}ablation/\w+/smix_(?P<step>{NUMBER})_(?P<T>\d+)_m(?P<mix>\d+)"
        rf"(?:_max(?P<most>{NUMBER}))?/tau_(?P<eta>{NUMBER})/num_(?P<m>\d+)/(?P<run>\d+)/{NOISE}",
    ),
    (
        "Jeong 2021",
        rf"{SMOOTHMIX}(?P<dataset>cifar10)/smoothmix/{NOISE}(?:_(?P<adversary>adv))?",
    ),
    (
        "Lyu 2024",
        r"ubc-systopia__adaptive-randomized-smoothing/assets/"
        r"sample_certification_log_cifar_sig05_pad16_ars\.txt",
    ),
    (
        "",  # of the path: whoever adds a log, in logs/ of presets/field
        rf"(?P<source>[\w. -]+)/(?P<dataset>{'|'.join(SIZES)})/"
        r"(?P<method>[\w.+ -]+)(?:,(?P<given>[\w.=, -]+))?/"
        rf"(?P<network>[\w-]+)/extra_(?P<extra>[\w. +-]+)/{TAIL}\.tsv(?:\.gz)?",
    ),
]
DEFAULTS = {  # what paths of a source leave out
    "Salman 2019": {"method": "cohen"},
    "Cohen 2019": {"method": "cohen"},
    "Jeong 2021": {"method": "smoothmix", "dataset": "mnist"},
    "Jeong 2023": {"method": "cat-rs", "sigma": "0.25"},
    "Lyu 2024": {"method": "ARS", "dataset": "cifar10, 64 x 64", "sigma": "0.5", "values": "12288"}
    | {"n": "50000", "alpha": "0.05"},
}
EXTRA = {"pretrained": "ImageNet32", "selftrained": "500k images"}
SPELT = "cohen=Gaussian gaussian=Gaussian salman=SmoothAdv smoothadv=SmoothAdv cat-rs=CAT-RS"
SPELT += " cat_rs=CAT-RS stab=stability macer=MACER smoothmix=SmoothMix ours=reweighting"
METHODS = dict(pair.split("=") for pair in SPELT.split())
METHODS["consistency/salman"] = "consistency + SmoothAdv"
NETWORKS = {"mnist": "lenet", "imagenet": "resnet50"}  # where the path has none: else resnet110
CORRUPTED, TRAIN = {"cifar10": 50_000}, 1_281_167  # of five severities; of ImageNet's training
PARTS = ("attack", "T", "m", "eps", "w", "lbd", "eta", "gamma", "beta", "step", "mix", "most")
PARTS += ("warmup", "deferred", "adversary", "severity", "corruption")


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a path says. ``again``: a network that another log has certified, on more images.

    ``size`` are the images to select from, 0 where they are unknown; ``order`` says which counting
    of images an ``idx`` is of. ``extra`` are further training data, or "none". ``values`` are those
    of an image where radii are of linf, else 1. ``n`` and ``alpha`` are as the source states them.
    """

    source: str
    dataset: str
    method: str
    constants: str
    extra: str
    network: str
    run: str
    sigma_train: float
    sigma: float
    size: int
    order: str
    again: bool
    values: int
    n: int
    alpha: float


def facts(path: str) -> Facts:
    """What a path below the folder of the logs says.

    Raises:
        DataError: No pattern matches the whole path.
    """
    for source, pattern in PATTERNS:
        if found := re.fullmatch(pattern, path):
            said = {key: value for key, value in found.groupdict().items() if value is not None}
            attacked = {"method": "salman"} if "attack" in said else {}
            return _facts(DEFAULTS.get(source, {}) | {"source": source} | attacked | said)
    raise DataError(
        f"{path}: no pattern of benchmarks/field/paths.py has such a path; CONTRIBUTING.md (Add "
        f"your log) has that of your own log, of {', '.join(SIZES)}"
    )


def _facts(said: dict[str, str]) -> Facts:
    dataset, source = said["dataset"], said["source"]
    constants = [f"{name}={_plain(name, said[name])}" for name in PARTS if name in said]
    if "base" in said:
        constants.append(f"attack on the base network {said['noise']} noise")
    extra = " + ".join(text for key, text in EXTRA.items() if key in said) or "none"
    size, order = SIZES.get(dataset, 0), ""
    if "corruption" in said:  # its severities are slices of all images
        size = 0 if "severity" in said else CORRUPTED.get(dataset, size)
        dataset += "-c"
    if said.get("split") == "train":
        dataset, size = f"{dataset}, training images", TRAIN
    if dataset == "imagenet":
        order = "files" if source == "Salman 2019" else "classes"
    sigma = float(said["sigma"])
    return Facts(
        source=source,
        dataset=dataset,
        method=METHODS.get(said["method"], said["method"]),
        constants=", ".join(filter(None, [*constants, said.get("given", "")])),
        extra=said.get("extra", extra),
        network=said.get("network", NETWORKS.get(said["dataset"], "resnet110")),
        run=said.get("run", ""),
        sigma_train=float(said.get("sigma_train", sigma)),
        sigma=sigma,
        size=size,
        order=order,
        again="best" in said,
        values=int(said.get("values", 1)),
        n=int(said.get("n", DRAWS)),
        alpha=float(said.get("alpha", ALPHA)),
    )


def _plain(name: str, value: str) -> str:
    """A constant as its paper has it: attack radii of folders are in 1/256."""
    if name == "eps":
        return f"{float(value):g}/256"
    return f"{float(value):g}" if re.fullmatch(NUMBER, value) else value
