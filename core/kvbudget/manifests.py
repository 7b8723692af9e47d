"""YAML text → manifests, with the same strictness as ``kubectl apply --validate=strict``: no key twice.

Needs PyYAML (extra ``[cli]``), imported where it is used.
"""

from collections.abc import Iterator
from typing import Any

from kvbudget.errors import InputError


def read_manifests(text: str, path: str) -> list[dict[str, Any]]:
    """Every object in a YAML (or JSON) stream; the items of a ``List`` one by one; empty documents are left out.

    Raises :class:`InputError` naming ``path`` and the line.

    >>> read_manifests("kind: A\\n---\\n---\\nkind: List\\nitems: [{kind: B}]", "x.yaml")
    [{'kind': 'A'}, {'kind': 'B'}]
    """
    return [document for _, document in numbered_manifests(text, path)]


def numbered_manifests(text: str, path: str) -> list[tuple[int, dict[str, Any]]]:
    """The same, each with the number of its document in the stream, from 1.

    >>> numbered_manifests("kind: A\\n---\\n---\\nkind: List\\nitems: [{kind: B}]", "x.yaml")
    [(1, {'kind': 'A'}), (3, {'kind': 'B'})]
    """
    import yaml

    class Strict(yaml.SafeLoader):
        """Refuses a key that occurs twice, which YAML forbids and PyYAML lets pass, numbers without end, and aliases
        that expand to more than anybody writes."""

        def construct_document(self, node: yaml.Node) -> Any:
            if _expanded(node, {}) > _MAX_VALUES:
                problem = f"its aliases expand to more than {_MAX_VALUES} values"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            return super().construct_document(node)

        def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
            if len(node.value) > _MAX_DIGITS:
                problem = f"a number of {len(node.value)} characters"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            return int(super().construct_yaml_int(node))

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            seen = set()
            for key_node, _ in node.value:
                if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == "tag:yaml.org,2002:merge":
                    continue
                if key_node.value in seen:
                    problem = f"the key {key_node.value!r} occurs twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
                seen.add(key_node.value)
            return super().construct_mapping(node, deep)

    Strict.add_constructor("tag:yaml.org,2002:int", Strict.construct_yaml_int)
    try:
        return [
            (number, found)
            for number, document in enumerate(yaml.load_all(text, Loader=Strict), start=1)
            for found in _objects([document], path, number)
        ]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(path, f"is not YAML: {where}{error.problem or 'cannot be read'}; correct that line") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: dates and numbers out of range; RecursionError: nesting without end.
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(path, f"is not YAML: {first}; give a Kubernetes manifest") from None


def _expanded(node: Any, known: dict[int, int]) -> int:
    """Values below a node of YAML, an alias counted as often as it occurs; one inside itself counts once (whoever walks
    it meets a RecursionError). Every node is visited once: ``known`` has those that were."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = 1
    children = node.value if isinstance(node.value, list) else ()
    total = 1
    for child in children:
        total += sum(_expanded(part, known) for part in (child if isinstance(child, tuple) else (child,)))
    known[id(node)] = total
    return total


def _objects(documents: list[Any], path: str, first: int) -> Iterator[dict[str, Any]]:
    for number, document in enumerate(documents, start=first):
        if document is None:
            continue
        if not isinstance(document, dict):
            reason = f"document {number} is a {_KINDS.get(type(document), type(document).__name__)}, not an object"
            raise InputError(path, f"{reason}; give a Kubernetes manifest")
        items = document.get("items")
        if document.get("kind") == "List" and isinstance(items, list):
            yield from _objects(items, path, 1)
        else:
            yield document


_MAX_VALUES = 500_000
"""A manifest of 4 MiB without aliases has fewer."""
_MAX_DIGITS = 64
"""No count or size in bytes is longer. Python refuses decimal numbers beyond 4300 digits, but not hexadecimal ones,
which it then cannot print, and takes time that grows with the square of the length for sexagesimal ones."""
_KINDS = {str: "text", list: "list", int: "number", float: "number", bool: "boolean"}
