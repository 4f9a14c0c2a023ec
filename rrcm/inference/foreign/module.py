"""Backend for a PyTorch network in memory, as it is."""

from rrcm.inference.foreign._network import Backend

__all__ = ["Backend"]
