"""What a user names: a model (by name, folder, file or manifest), a GPU type, a price list."""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kvbudget.api import GPUClass, LLMService, parse_service
from kvbudget.cli.reading import naming, read_text
from kvbudget.engines import Card
from kvbudget.errors import InputError, Problem
from kvbudget.gpu import CATALOGUE, CatalogueEntry, lookup
from kvbudget.layers import Architecture
from kvbudget.manifests import read_manifests
from kvbudget.parameters import checkpoint_agrees
from kvbudget.planner.question import Device, capability, catalogue_device
from kvbudget.planner.weightformats import stored_as
from kvbudget.quantity import parse_int
from kvbudget.served import resolve
from kvbudget.shapes.config import from_config
from kvbudget.shapes.dense import architecture_of
from kvbudget.shapes.files import read_model
from kvbudget.shapes.table import facts, known_names, matching

_MANIFESTS: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Model:
    """``service``: the manifest that it came from, whose other fields are then defaults."""

    name: str
    shape: Architecture
    service: LLMService | None = None


def model_named(argument: str) -> Model:
    """A path to a folder, config.json, params.json, .gguf or LLMService manifest; else a name of the built-in table,
    also without its organisation where that is clear. Raises InputError."""
    try:
        path = Path(argument)
        if path.exists():
            return _from_path(path, argument)
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        detail = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(argument, f"cannot be read: {detail or error}; give a model's folder or file") from None
    name = known_name(argument)
    return Model(name, from_config(facts(name) or {}, name, name=name))


def known_name(wanted: str) -> str:
    """The name in the table. Raises InputError with the nearest ones."""
    found = matching(wanted)
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError("MODEL", f"{wanted} may be {' or '.join(found)}; give the whole name")
    names = known_names()
    short = {n.rpartition("/")[2].lower(): n for n in names} | {n.lower(): n for n in names}
    near = list(dict.fromkeys(short[n] for n in difflib.get_close_matches(wanted.lower(), short, n=5, cutoff=0.5)))[:3]
    hint = f"did you mean {', '.join(near)}?" if near else "`kvbudget models` lists the names."
    reason = f"{wanted[:80]!r} is neither a file nor a model that is known by name; {hint}"
    raise InputError("MODEL", f"{reason} Else give its folder, config.json or .gguf file")


def device_named(name: str, classes: Mapping[str, GPUClass]) -> Device:
    """A GPUClass of the files, else a type of the catalogue by any of its names. Raises InputError."""
    own = classes.get(name)
    if own is not None:
        return _own_device(own)
    found = lookup(name)
    if isinstance(found, Problem):
        near = difflib.get_close_matches(name, classes, n=1)
        raise InputError("--gpu", f"{found.message}{f' Or the GPUClass {near[0]}?' if near else ''}")
    return catalogue_device(_canonical(found, name), found)


def all_devices(classes: Mapping[str, GPUClass]) -> tuple[Device, ...]:
    """Every type of the catalogue, and the classes of the files, which win."""
    listed = [catalogue_device(name, entry) for name, entry in CATALOGUE.items() if name not in classes]
    return (*listed, *(_own_device(c) for c in classes.values() if c.spec.resource_name != "cpu"))


def read_prices(path: str, devices: tuple[Device, ...]) -> dict[str, float]:
    """A YAML or JSON object: GPU type → price of one GPU per hour. Raises InputError."""
    objects = read_manifests(read_text(path, "a list of prices"), path)
    if len(objects) != 1 or not objects[0]:
        raise InputError(path, "must be one object, GPU type: price per GPU-hour, like h100-80gb: 2.5")
    known = {d.name for d in devices}
    prices = {}
    for name, price in objects[0].items():
        if isinstance(price, bool) or not isinstance(price, int | float) or not math.isfinite(price) or price <= 0:
            raise InputError(path, f"the price of {name} is {str(price)[:40]!r}; it must be a number above 0")
        device = str(name) if name in known else device_named(str(name), {}).name
        if device in prices:
            raise InputError(path, f"{device} has two prices; leave one out")
        prices[device] = float(price)
    return prices


def _from_path(path: Path, argument: str) -> Model:
    if path.suffix in _MANIFESTS:
        return _from_manifest(argument)
    return Model(argument, read_model(path))


def _from_manifest(path: str) -> Model:
    services = [m for m in read_manifests(read_text(path), path) if m.get("kind") == "LLMService"]
    if len(services) != 1:
        raise InputError(path, f"holds {len(services)} LLMServices; as MODEL give a file with one")
    return service_model(services[0], path)


def service_model(manifest: dict[str, Any], path: str) -> Model:
    """The model that a service serves, with the weights that it asks for. Raises InputError where its shape is not
    known."""
    with naming(path, manifest):
        service = parse_service(manifest)
    shape = resolve(service)
    if isinstance(shape, Problem):
        raise InputError(path, str(shape))
    wanted, stored = service.spec.model.weight_precision, architecture_of(shape)
    if wanted != "Auto":
        known = shape.weight_bytes if checkpoint_agrees(shape, wanted) else None
        stored = replace(stored_as(stored, wanted), weight_bytes=known)
    return Model(service.served_name, stored, service)


def _own_device(own: GPUClass) -> Device:
    spec, name = own.spec, own.metadata.name
    if spec.resource_name == "cpu":
        raise InputError("--gpu", f"class {name} has no devices; plan it with: kvbudget plan -f")
    card = Card(name=name, memory_bytes=parse_int(spec.memory), compute_capability=capability(spec.compute_capability))
    return Device(
        name=name,
        card=card,
        kv_precisions=tuple(spec.kv_precisions),
        weight_precisions=tuple(spec.weight_precisions),
        resource_name=spec.resource_name,
    )


def _canonical(found: CatalogueEntry, name: str) -> str:
    """The catalogue's name; a MIG profile keeps the one it was asked by."""
    return next((n for n, entry in CATALOGUE.items() if entry is found), name.strip().lower())
