"""Problems as tests compare them."""

from kvbudget.errors import Problem


def told(problems: tuple[Problem, ...]) -> list[tuple[str, str]]:
    """(check, path) of each."""
    return [(p.check, p.path) for p in problems]
