"""Parameters of a vision tower and its projector, from ``vision_config``.

Qwen's towers are counted to the parameter; of others the blocks are counted and the rest is taken as a projector of two
layers, which is said in an assumption.
"""

from kvbudget.shapes.families import family_name
from kvbudget.shapes.keys import Keys

_QWEN = ("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")


def parameters(keys: Keys) -> tuple[int | None, tuple[str, ...]]:
    """Parameters of the towers (0: none, None: of unknown size), and what was assumed."""
    stated = keys.parameters("vision_parameters")
    if stated is not None:
        return stated, ()
    tower = keys.child("vision_config")
    audio = keys.has("audio_config")
    if tower is None or not tower.config:
        if audio:
            return None, ("the audio tower's weights are not counted: their size is not in the file",)
        return 0, ()
    if family_name(keys.text("model_type") or "") in _QWEN:
        return _qwen(tower, keys.count("hidden_size")), ()
    counted = _blocks(tower, keys.count("hidden_size"))
    if counted is None:
        return None, ("the vision tower's weights are not counted: their sizes are not in the file",)
    note = "the vision tower is counted from its blocks; projector and position tables are estimated"
    return counted, (note, "the audio tower's weights are not counted") if audio else (note,)


def _qwen(tower: Keys, text_hidden: int) -> int:
    hidden, wide = tower.count("hidden_size"), tower.count("intermediate_size")
    depth, patch = tower.count("depth"), tower.count("patch_size")
    volume = tower.count("in_channels", default=3) * tower.count("temporal_patch_size", default=2) * patch * patch
    merged = hidden * tower.count("spatial_merge_size", default=2) ** 2
    out = tower.count("out_hidden_size", default=text_hidden)
    block = 4 * hidden + 4 * hidden * hidden + 4 * hidden + 2 * hidden * wide + wide + hidden
    projector = merged * merged + merged + merged * out + out
    extra = len(tower.counts("deepstack_visual_indexes", None) or ())
    positions = tower.count("num_position_embeddings", default=2304) * hidden
    stem = volume * hidden + hidden + positions
    return depth * block + stem + projector + 2 * hidden + extra * (projector + 2 * merged)


def _blocks(tower: Keys, text_hidden: int) -> int | None:
    hidden = tower.optional("hidden_size", "vt_hidden_size", "embed_dim", "width")
    depth = tower.optional("num_hidden_layers", "vt_num_hidden_layers", "depth", "layers")
    if hidden is None or depth is None:
        return None
    wide = tower.count("intermediate_size", "vt_intermediate_size", default=4 * hidden)
    text_model = tower.text("model_type") or ""
    matrices = 3 if text_model.startswith(("gemma4", "pixtral", "qwen2_5_vl")) else 2
    sizes = tower.config.get("patch_size", 14)
    patch = tower.whole(sizes[0] if isinstance(sizes, list) and sizes else sizes, "patch_size", least=1, most=4096)
    return (
        depth * (4 * hidden * hidden + matrices * hidden * wide + 8 * hidden)
        + 3 * patch * patch * hidden
        + (2 * hidden * text_hidden)
    )
