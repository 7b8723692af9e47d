#!/usr/bin/env python3
"""runc for a machine whose bounding set lacks CAP_SYS_RESOURCE.

dockerd asks for every capability it knows when a container is privileged, and runc then fails with "unable to apply
caps". This stands between the two: it takes out of the request what the machine cannot give (that capability, raised
rlimits and a negative oom_score_adj, which need it), then becomes runc.
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any


def option(args: list[str], *names: str) -> str | None:
    """The value of the first of these options, written `--name value` or `--name=value`."""
    for i, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name in names:
            return value if equals else args[i + 1]
    return None


def bound(process: dict[str, Any]) -> None:
    """Changes an OCI process description in place."""
    for kind, names in (process.get("capabilities") or {}).items():
        process["capabilities"][kind] = [name for name in names or [] if name != "CAP_SYS_RESOURCE"]
    process.pop("rlimits", None)
    process["oomScoreAdj"] = max(0, process.get("oomScoreAdj") or 0)


def main(args: list[str]) -> None:
    if {"create", "run"} & set(args) and (bundle := option(args, "--bundle", "-b")):
        path = Path(bundle, "config.json")
        config = json.loads(path.read_text())
        bound(config["process"])
        path.write_text(json.dumps(config))
    elif "exec" in args and (process_path := option(args, "--process", "-p")):
        path = Path(process_path)
        process = json.loads(path.read_text())
        bound(process)
        path.write_text(json.dumps(process))
    runc = shutil.which("runc", path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    if runc is None:
        sys.exit("runc is not installed (Debian: apt-get install runc)")
    os.execv(runc, [runc, *args])


if __name__ == "__main__":
    main(sys.argv[1:])
