"""A small set of cases in which every pair of values of any two axes occurs."""

from collections.abc import Mapping, Sequence
from itertools import combinations


def pairwise(axes: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Greedy and without chance: each case starts from a pair that has not occurred yet and takes, axis after axis, the
    value that adds most new pairs (the one used least among equals)."""
    names = list(axes)
    open_pairs = {
        (a, i, b, j)
        for a, b in combinations(range(len(names)), 2)
        for i in range(len(axes[names[a]]))
        for j in range(len(axes[names[b]]))
    }
    used = {(a, i): 0 for a, name in enumerate(names) for i in range(len(axes[name]))}
    cases = []
    while open_pairs:
        a, i, b, j = min(open_pairs)
        chosen = {a: i, b: j}
        for axis, name in enumerate(names):
            if axis in chosen:
                continue
            gains = [
                (sum(_pair(axis, value, other, at) in open_pairs for other, at in chosen.items()), -used[axis, value])
                for value in range(len(axes[name]))
            ]
            chosen[axis] = gains.index(max(gains))
        for x, y in combinations(sorted(chosen), 2):
            open_pairs.discard((x, chosen[x], y, chosen[y]))
        for axis, value in chosen.items():
            used[axis, value] += 1
        cases.append({name: axes[name][chosen[axis]] for axis, name in enumerate(names)})
    return cases


def _pair(a: int, i: int, b: int, j: int) -> tuple[int, int, int, int]:
    return (a, i, b, j) if a < b else (b, j, a, i)
