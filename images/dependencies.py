"""Install an image's dependencies into one folder, and take out what the image's device can never use.

`images/build.sh` runs this on the host, whose index settings, certificates and download cache it then uses; where the
folder does not come with the build context, the Dockerfiles run it themselves. Device `cpu` removes triton and the CUDA
libraries that `import torch` does not map, and puts stand-ins (see stub_library.py) for those that it does.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import stub_library

CUDA_PACKAGES = re.compile(r"^(torch|triton|nvidia-|cuda-)")
# libcudart answers "how many GPUs?"; libcudnn.so.9 is a loader of a few kilobytes
KEPT_LIBRARIES = ("libcudart.so", "libcudnn.so")
UNUSED_FOLDERS = ("bin", "triton", "torch/include", "torch/share")
CHECK = {
    "worker": """
import torch, tokenizers, safetensors.torch, uvicorn, starlette.applications, orjson, jinja2, prometheus_client
x = torch.randn(8, 16)
assert torch.allclose(x @ x.T, (x.double() @ x.double().T).float(), atol=1e-4)
q = torch.randn(1, 2, 4, 8, dtype=torch.bfloat16)
torch.nn.functional.scaled_dot_product_attention(q, q, q)
""",
    "operator": """
import importlib.util, kopf, kubernetes, aiohttp, cryptography, prometheus_client, pydantic
assert importlib.util.find_spec("torch") is None, "the operator's image must not carry torch"
""",
}
MAPPED = """
import torch
torch.cuda.is_available()
for line in open("/proc/self/maps"):
    if "/nvidia/" in line: print(line.split(maxsplit=5)[-1].strip())
"""


def blocks(requirements: str) -> Iterator[str]:
    """A requirements file with hashes, one requirement (its hash and comment lines included) at a time."""
    block = ""
    for line in requirements.splitlines(keepends=True):
        if block and not line.startswith((" ", "\t")):
            yield block
            block = ""
        block += line
    if block:
        yield block


def installer(python: str) -> list[str]:
    """The command that installs: uv where there is one (it links files from its cache), else pip."""
    if uv := os.environ.get("UV") or shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", python]
    return [python, "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]


def install(requirements: Path, target: Path, torch_index: str | None, torch_wheel: Path | None) -> None:
    """Fills target with the hash-checked requirements; with an index or a wheel for torch, with that torch instead."""
    command = [*installer(sys.executable), "--target", str(target)]
    text = requirements.read_text()
    other_torch = torch_index or torch_wheel
    chosen = [b for b in blocks(text) if not (other_torch and CUDA_PACKAGES.match(b))]
    filtered = target.with_name(target.name + "-requirements.txt")
    filtered.write_text("".join(chosen))
    subprocess.run([*command, "--require-hashes", "-r", str(filtered)], check=True)
    if torch_wheel:
        subprocess.run([*command, "--no-deps", str(torch_wheel)], check=True)
    elif torch_index:
        version = next(m[1] for m in re.finditer(r"^torch==([\w.]+)", text, re.MULTILINE))
        subprocess.run([*command, "--no-deps", "--index-url", torch_index, f"torch=={version}"], check=True)
    filtered.unlink()


def python_with(target: Path, program: str) -> str:
    """Runs a program that sees only target and the standard library (-S: no site-packages); returns what it printed."""
    env = {**os.environ, "PYTHONPATH": str(target)}
    done = subprocess.run([sys.executable, "-S", "-c", program], env=env, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def slim(target: Path) -> None:
    """Leaves a torch that runs on the CPU, and changes no file in place: other hard links keep theirs."""
    mapped = {Path(line).resolve() for line in python_with(target, MAPPED).splitlines()}
    for folder in UNUSED_FOLDERS:
        shutil.rmtree(target / folder, ignore_errors=True)
    for path in sorted((target / "nvidia").rglob("*")):
        if not path.is_file() or path.suffix == ".py" or path.name.startswith(KEPT_LIBRARIES):
            continue
        if path.resolve() not in mapped:
            path.unlink()
            continue
        try:
            stub_library.replace(path)
        except stub_library.Unsupported as why:
            print(f"kept whole: {path.name} ({why})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image", choices=sorted(CHECK))
    parser.add_argument("requirements", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--torch-index", help="an index with CPU-only wheels of torch")
    parser.add_argument("--torch-wheel", type=Path, help="a wheel file of torch")
    args = parser.parse_args()
    shutil.rmtree(args.target, ignore_errors=True)
    args.target.mkdir(parents=True)
    install(args.requirements, args.target, args.torch_index or None, args.torch_wheel)
    if args.device == "cpu" and (args.target / "nvidia").is_dir():
        slim(args.target)
    python_with(args.target, CHECK[args.image])  # also leaves bytecode of all that it imports


if __name__ == "__main__":
    main()
