"""How long hypothesis looks: $KVBUDGET_LAWS is ``fast`` (make test-fast), ``ci`` (the default) or ``soak``.

``fast`` and ``ci`` look at the same examples in every run, so that nobody's change fails by bad luck; ``soak`` looks at
new ones each time, and at many more.
"""

import os

from hypothesis import HealthCheck, Phase, settings

VARIABLE = "KVBUDGET_LAWS"
EXAMPLES = {"fast": 15, "ci": 100, "mutants": 100, "soak": 2000}
"""Examples of a law in each profile. A costly law takes a :func:`share` of them. ``mutants`` is ``ci`` for faults that
are there on purpose: a counterexample is not made smaller."""


def profile() -> str:
    """Name of the profile in use. Raises ValueError, naming the known ones."""
    name = os.environ.get(VARIABLE, "ci")
    if name not in EXAMPLES:
        raise ValueError(f"{VARIABLE}: {name!r} is no profile; set one of {', '.join(EXAMPLES)}")
    return name


def load_profile() -> None:
    """Makes the profile hypothesis's default. Slowness is no failure: the machine may be loaded."""
    name = profile()
    settings.register_profile(
        f"kvbudget-{name}",
        max_examples=EXAMPLES[name],
        derandomize=name != "soak",
        phases=[phase for phase in Phase if name != "mutants" or phase is not Phase.shrink],
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
    settings.load_profile(f"kvbudget-{name}")


def share(of_the_profile: float, *, steps: int = 50) -> settings:
    """Settings of a law that takes a part of the profile's examples; a state machine takes ``steps`` in each."""
    return settings(max_examples=max(1, round(EXAMPLES[profile()] * of_the_profile)), stateful_step_count=steps)
