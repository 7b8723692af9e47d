"""Readers of model files. :func:`open_checkpoint` is the way in."""

from kvbudget_worker.weights.checkpoint import Checkpoint, GGUFCheckpoint, find_gguf, open_checkpoint

__all__ = ["Checkpoint", "GGUFCheckpoint", "find_gguf", "open_checkpoint"]
