"""``kvbudget gpus``: the built-in catalogue."""

import click

from kvbudget.cli.output import output_option, print_data, print_text
from kvbudget.gpu import CATALOGUE, CatalogueEntry, lookup
from kvbudget.gpucatalogue import ROWS
from kvbudget.planner.describe import gpu_json
from kvbudget.planner.text import table

_GIB = 1024**3


@click.command()
@click.argument("word", required=False)
@click.option("--min-memory", type=click.FloatRange(0), default=0.0, metavar="GIB", help="At least so many GiB.")
@click.option("--kv-precision", metavar="P", help="Only those that can keep KV so, like FP8E4M3.")
@click.option("--mig", is_flag=True, help="Also the MIG profiles of each type.")
@output_option
def gpus(word: str | None, min_memory: float, kv_precision: str | None, mig: bool, output: str) -> None:
    """List the GPU types that are known by name; WORD is a part of a name.

    Memory is what the driver reports, which is less than the box says, and the lowest figure where drivers and ECC
    differ. A GPUClass of your own (-f) wins. The names on node labels, like NVIDIA-H100-80GB-HBM3, are understood too.
    """
    chosen = {
        name: entry
        for name, entry in _all(mig).items()
        if _is_named(name, word) and entry.memory_bytes >= min_memory * _GIB and _can(entry, kv_precision)
    }
    if output != "table":
        data = [gpu_json(name, entry) for name, entry in chosen.items()]
        print_data({"schema": "kvbudget/gpus/v1", "gpus": data}, output)
        return
    head = ("gpu", "GiB", "from", "arch", "GB/s", "KV precisions", "weights")
    print_text("\n".join((*table(head, [_cells(*item) for item in chosen.items()], right=(1, 4)), "")))
    if not chosen:
        click.echo("no GPU type is like that; without arguments all are listed", err=True)


def _all(mig: bool) -> dict[str, CatalogueEntry]:
    found = dict(CATALOGUE)
    for name, row in ROWS.items() if mig else ():
        for profile, _ in row.mig:
            part = lookup(f"{name}-mig-{profile}")
            if isinstance(part, CatalogueEntry):
                found[f"{name}-mig-{profile}"] = part
    return found


def _is_named(name: str, word: str | None) -> bool:
    aliases = ROWS[name].aliases if name in ROWS else ()
    return word is None or any(word.lower() in other.lower() for other in (name, *aliases))


def _can(entry: CatalogueEntry, precision: str | None) -> bool:
    wanted = None if precision is None else {"FP8": "FP8E4M3"}.get(precision.upper(), precision.upper())
    return wanted is None or wanted in entry.kv_precisions


def _cells(name: str, entry: CatalogueEntry) -> tuple[str, ...]:
    return (
        name,
        f"{entry.memory_bytes / _GIB:.2f}",
        "logs" if entry.measured else "figures",
        entry.architecture,
        str(entry.bandwidth_bytes // 10**9),
        " ".join(entry.kv_precisions),
        " ".join(entry.weight_precisions),
    )
