"""What `torch.export` makes: a network whose flags and batches are other than those of modules."""

from typing import Any

from torch import nn

from rrcm.config.defaults import DRAWS

FEWEST = 2  # pictures of a batch of any size


def is_one(part: nn.Module) -> bool:
    """Whether it is `torch.export`'s, whose flag ``training`` stays: ``eval`` refuses to be called.

    Dropout and batch norm are then what they were when it was exported, and the checks decide.
    """
    return "eval" in vars(part)


def training(network: nn.Module) -> list[str]:
    """The names of parts in training mode, without exported programs and what has or is in one."""
    parts = [*network.named_modules()]
    exported = [f"{name}." for name, part in parts if is_one(part)]

    def touches(name: str, other: str) -> bool:
        return other.startswith(name) or name.startswith(other) or "." in (name, other)

    return [
        name
        for name, part in parts
        if getattr(part, "training", False)  # a frozen script has no such flag
        and not any(touches(f"{name}.", other) for other in exported)
    ]


def batch(network: nn.Module) -> int:
    """The batch that the first program in it takes; of several, that nearest to a usual one.

    0 stands for any, and where nothing is known.
    """
    graph: Any = next((getattr(p, "graph", None) for p in network.modules() if is_one(p)), None)
    inputs = [node for node in graph.nodes if node.op == "placeholder"] if graph else []
    shape = [*getattr(inputs[0].meta.get("val"), "shape", ())] if inputs else []
    if not shape or isinstance(shape[0], int):
        return shape[0] if shape else 0
    symbol = shape[0].node
    taken = symbol.shape_env.bound_sympy(symbol.expr)
    nearest = int(max(taken.lower, min(taken.upper, DRAWS.batch_size)))
    return 0 if taken.lower <= FEWEST and nearest == DRAWS.batch_size else nearest
