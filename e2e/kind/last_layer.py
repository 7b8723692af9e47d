#!/usr/bin/env python3
"""last_layer.py TAG NODE ARCHIVE: what a kind node lacks of a Docker image; prints `fresh`, `layer` or `whole`.

Our images have the code in their last layer, alone in it. `docker save` writes all layers, 1.3 GiB for the
worker, whatever the node has; so where only the code changed (`layer`), ARCHIVE becomes an image archive for `kind load
image-archive` that has the last layer alone: containerd has the others, and takes them from there.

Needs Docker and the standard library. The archive is an OCI image layout in a tar file (image-spec, image-layout.md).
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

APPLICATION = PurePosixPath("opt/kvbudget/application")
"""Where the last layer has its files; the layers below have nothing there."""
INPUTS_LABEL = "dev.kvbudget.inputs"
"""images/build.sh writes the digest of all that an image is made of into it."""
OCI = {
    "manifest": "application/vnd.oci.image.manifest.v1+json",
    "config": "application/vnd.oci.image.config.v1+json",
    "layer": "application/vnd.oci.image.layer.v1.tar",
}
DOCKER = {
    "manifest": "application/vnd.docker.distribution.manifest.v2+json",
    "config": "application/vnd.docker.container.image.v1+json",
    "layer": "application/vnd.docker.image.rootfs.diff.tar",
}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class NodeImage:
    """An image as containerd has it: its manifest and its configuration."""

    manifest: Json
    config: Json


def lacks(image: Json, node: NodeImage | None) -> str:
    """`fresh`, `layer` or `whole`, for an image as `docker image inspect` tells it."""
    if node is None:
        return "whole"
    layers, there = image["RootFS"]["Layers"], node.config["rootfs"]["diff_ids"]
    inputs = (image["Config"].get("Labels") or {}).get(INPUTS_LABEL)
    if layers == there or (inputs and (node.config["config"].get("Labels") or {}).get(INPUTS_LABEL) == inputs):
        return "fresh"
    return "layer" if layers[:-1] == there[:-1] and len(layers) > 1 else "whole"


def under(folder: PurePosixPath, archive: bytes) -> bytes:
    """The tar archive with every name below folder."""
    moved = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as source,
        tarfile.open(fileobj=moved, mode="w", format=tarfile.GNU_FORMAT) as target,
    ):
        for member in source:
            member.name = str(folder / member.name)
            target.addfile(member, source.extractfile(member) if member.isfile() else None)
    return moved.getvalue()


def with_last_layer(name: str, image: Json, node: NodeImage, layer: bytes) -> bytes:
    """The archive that makes, of the node's image and a layer (a tar archive), the image as Docker has it."""
    kinds = DOCKER if node.manifest.get("mediaType") == DOCKER["manifest"] else OCI
    config = {
        "created": image["Created"],
        "architecture": image["Architecture"],
        "os": image["Os"],
        "config": image["Config"],
        "rootfs": {"type": "layers", "diff_ids": [*node.config["rootfs"]["diff_ids"][:-1], digest(layer)]},
    }
    config_blob = encode(config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": kinds["manifest"],
        "config": descriptor(kinds["config"], config_blob),
        "layers": [*node.manifest["layers"][:-1], descriptor(kinds["layer"], layer)],
    }
    manifest_blob = encode(manifest)
    entry = {
        **descriptor(kinds["manifest"], manifest_blob),
        "annotations": {"io.containerd.image.name": name},
        "platform": {"architecture": image["Architecture"], "os": image["Os"]},
    }
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry]}
    files = {
        "oci-layout": encode({"imageLayoutVersion": "1.0.0"}),
        **{f"blobs/{digest(blob).replace(':', '/')}": blob for blob in (layer, config_blob, manifest_blob)},
        "index.json": encode(index),
    }
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def descriptor(kind: str, blob: bytes) -> Json:
    return {"mediaType": kind, "digest": digest(blob), "size": len(blob)}


def encode(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def docker(*arguments: str) -> bytes:
    return subprocess.run(["docker", *arguments], check=True, stdout=subprocess.PIPE).stdout


def image_in(ctr: Callable[..., bytes], name: str) -> NodeImage | None:
    """The image called name in a containerd, which ctr asks; None where there is none, or none of one platform."""
    rows = [line.split() for line in ctr("images", "ls", f"name=={name}").decode().splitlines()]
    targets = [row[2] for row in rows if row[0] == name]
    if not targets:
        return None
    manifest = json.loads(ctr("content", "get", targets[0]))
    if "layers" not in manifest:
        return None
    return NodeImage(manifest, json.loads(ctr("content", "get", manifest["config"]["digest"])))


def application_of(tag: str) -> bytes:
    """The files of the last layer, as a layer."""
    container = docker("create", tag).decode().strip()
    try:
        files = docker("cp", f"{container}:/{APPLICATION}", "-")
    finally:
        docker("rm", container)
    return under(APPLICATION.parent, files)


def main(tag: str, node: str, archive: Path) -> None:
    name = f"docker.io/{tag}"
    image = json.loads(docker("image", "inspect", tag))[0]
    there = image_in(partial(docker, "exec", node, "ctr", "--namespace=k8s.io"), name)
    answer = lacks(image, there)
    if answer == "layer" and there:
        archive.write_bytes(with_last_layer(name, image, there, application_of(tag)))
    print(answer)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
