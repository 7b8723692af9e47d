"""What the process is told from outside, beside the Plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvbudget import contract
from kvbudget.errors import InputError


@dataclass(frozen=True, slots=True)
class Settings:
    """``device``: ``cuda``, ``cpu`` or None (``cuda`` where one is found)."""

    plan_path: Path
    host: str
    port: int
    device: str | None

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "Settings":
        """Reads the environment. Raises InputError naming the variable and the fix."""
        device = env.get(contract.ENV_DEVICE) or None
        if device not in (None, "cuda", "cpu"):
            raise InputError(contract.ENV_DEVICE, f"{device!r} is no device: set cuda or cpu, or leave it out")
        port = env.get(contract.ENV_PORT) or str(contract.WORKER_PORT)
        if not port.isdecimal() or not 0 <= int(port) <= 65535:
            raise InputError(contract.ENV_PORT, f"{port!r} is no port: set a number from 0 (any free one) to 65535")
        return cls(
            plan_path=Path(env.get(contract.ENV_PLAN) or Path(contract.PLAN_DIR, contract.PLAN_FILE)),
            host=env.get(contract.ENV_HOST) or "0.0.0.0",
            port=int(port),
            device=device,
        )
