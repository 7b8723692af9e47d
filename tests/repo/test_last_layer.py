"""After a change of code a kind node gets the last layer alone (e2e/kind/last_layer.py): against a real containerd."""

import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from kind import last_layer
from kind.last_layer import INPUTS_LABEL, NodeImage
from support.clone import may_mount
from support.process import wait_for

TAG = "kvbudget/test:dev"
NAME = f"docker.io/{TAG}"
Image = dict[str, Any]


def packed(**files: str) -> bytes:
    """A tar archive of these files; a name's __ stands for /."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return archive.getvalue()


def inspected(inputs: str, *layers: bytes) -> Image:
    """As `docker image inspect` tells an image."""
    return {
        "Created": "2026-01-01T00:00:00Z",
        "Architecture": "amd64",
        "Os": "linux",
        "Config": {"Env": [f"INPUTS={inputs}"], "Labels": {INPUTS_LABEL: inputs}},
        "RootFS": {"Type": "layers", "Layers": [last_layer.digest(layer) for layer in layers]},
    }


def on_node(image: Image) -> NodeImage:
    layers = [{"mediaType": "x", "digest": digest, "size": 1} for digest in image["RootFS"]["Layers"]]
    config = {"config": image["Config"], "rootfs": {"diff_ids": image["RootFS"]["Layers"]}}
    return NodeImage({"layers": layers}, config)


BASE, LIBRARIES, OLD, NEW = (packed(**{name: name}) for name in ("base", "libraries", "old", "new"))
HAS = inspected("1", BASE, LIBRARIES, OLD)


@pytest.mark.parametrize(
    ("wanted", "there", "lacks"),
    [
        (HAS, None, "whole"),
        (HAS, HAS, "fresh"),
        (inspected("1", BASE, LIBRARIES, NEW), HAS, "fresh"),  # the same inputs, built on another day
        (inspected("2", BASE, LIBRARIES, OLD), HAS, "fresh"),  # other inputs that give the same
        (inspected("2", BASE, LIBRARIES, NEW), HAS, "layer"),
        (inspected("2", BASE, NEW, OLD), HAS, "whole"),
        (inspected("2", BASE, NEW), HAS, "whole"),
        (inspected("2", BASE, LIBRARIES, OLD, NEW), HAS, "whole"),
        (inspected("", BASE, LIBRARIES, NEW), inspected("", BASE, LIBRARIES, OLD), "layer"),
        (
            inspected("2", NEW),
            inspected("1", OLD),
            "whole",
        ),  # nothing below the last layer shows that they belong together
    ],
)
def test_what_a_node_lacks(wanted: Image, there: Image | None, lacks: str) -> None:
    assert last_layer.lacks(wanted, on_node(there) if there else None) == lacks


def test_the_files_of_the_layer_lie_where_the_image_has_them() -> None:
    moved = last_layer.under(PurePosixPath("opt/kvbudget"), packed(application__kvbudget__a="text"))
    with tarfile.open(fileobj=io.BytesIO(moved)) as tar:
        (member,) = tar.getmembers()
        file = tar.extractfile(member)
        assert file
        assert (member.name, file.read()) == ("opt/kvbudget/application/kvbudget/a", b"text")


def test_every_blob_of_the_archive_has_its_digest_and_the_layers_below_are_not_in_it() -> None:
    archive = last_layer.with_last_layer(NAME, inspected("2", BASE, LIBRARIES, NEW), on_node(HAS), NEW)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        blobs = {m.name: file.read() for m in tar if (file := tar.extractfile(m))}
    stored = {name: blob for name, blob in blobs.items() if name.startswith("blobs/")}
    assert {name: f"blobs/{last_layer.digest(blob).replace(':', '/')}" for name, blob in stored.items()} == {
        name: name for name in stored
    }
    assert len(stored) == 3
    assert NEW in stored.values()


# With containerd itself.

Ctr = Callable[..., bytes]


@pytest.fixture
def ctr(tmp_path: Path) -> Iterator[Ctr]:
    """Asks a containerd of its own."""
    address = tmp_path / "s"
    config = tmp_path / "config.toml"
    config.write_text(
        f'version = 2\nroot = "{tmp_path}/root"\nstate = "{tmp_path}/state"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\n  address = "{address}"\n[ttrpc]\n  address = "{tmp_path}/t"\n'
    )
    with (tmp_path / "log").open("w") as log:
        daemon = subprocess.Popen(["containerd", "-c", str(config)], stdout=log, stderr=log)

    def ask(*arguments: str, stdin: bytes = b"") -> bytes:
        command = ["ctr", "-a", str(address), "--namespace=k8s.io", *arguments]
        return subprocess.run(command, input=stdin, check=True, stdout=subprocess.PIPE).stdout

    try:
        wait_for(address.exists, "containerd's start")
        yield ask
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)


def saved(image: Image, *layers: bytes) -> bytes:
    """As `docker save` writes an image."""
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": image["Config"],
        "rootfs": {"type": "layers", "diff_ids": image["RootFS"]["Layers"]},
    }
    names = [f"{n}/layer.tar" for n in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": [TAG], "Layers": names}]
    files = {**dict(zip(names, layers, strict=True)), "config.json": json.dumps(config).encode()}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in {**files, "manifest.json": json.dumps(manifest).encode()}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive.getvalue()


@pytest.mark.slow
@pytest.mark.skipif(
    not may_mount() or not shutil.which("containerd"), reason="needs containerd, and a root that may mount"
)
def test_containerd_makes_the_new_image_of_its_own_layers_and_the_last_one(ctr: Ctr, tmp_path: Path) -> None:
    bring = ("images", "import", "--all-platforms", "--digests", "--snapshotter=native", "-")
    old, new = (packed(opt__kvbudget__application__code=text) for text in ("old", "new"))
    lower = [packed(lib="big"), packed(opt__kvbudget__dependencies__torch="torch")]
    before = inspected("1", *lower, old)
    ctr(*bring, stdin=saved(before, *lower, old))
    there = last_layer.image_in(ctr, NAME)
    assert there
    assert last_layer.image_in(ctr, "docker.io/kvbudget/nothing:dev") is None
    wanted = inspected("2", *lower, new)
    assert last_layer.lacks(before, there) == "fresh"
    assert last_layer.lacks(wanted, there) == "layer"

    layer = last_layer.under(PurePosixPath("opt/kvbudget"), packed(application__code="new"))
    archive = last_layer.with_last_layer(NAME, wanted, there, layer)
    assert len(archive) < 4 * len(layer) + 40_000
    ctr(*bring, stdin=archive)
    after = last_layer.image_in(ctr, NAME)
    assert after
    assert after.config["config"] == wanted["Config"]
    assert last_layer.lacks(wanted, after) == "fresh"
    seen = tmp_path / "seen"
    seen.mkdir()
    ctr("images", "mount", "--snapshotter=native", NAME, str(seen))
    try:
        assert (seen / "opt/kvbudget/application/code").read_text() == "new"
        assert (seen / "opt/kvbudget/dependencies/torch").read_text() == "torch"
        assert (seen / "lib").read_text() == "big"
    finally:
        ctr("images", "unmount", str(seen))
