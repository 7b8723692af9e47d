"""What a caller can do wrong."""


class KernelInputError(ValueError):
    """Tensors or options that a kernel cannot take. ``field`` names the argument, ``reason`` what is wrong with it and
    ``fix`` what would be right."""

    def __init__(self, field: str, reason: str, fix: str) -> None:
        super().__init__(f"{field}: {reason}; {fix}")
        self.field = field
        self.reason = reason
        self.fix = fix


def require(holds: bool, field: str, reason: str, fix: str) -> None:
    """Raises KernelInputError unless ``holds``."""
    if not holds:
        raise KernelInputError(field, reason, fix)
