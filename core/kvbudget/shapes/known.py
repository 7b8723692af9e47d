"""Which keys of a configuration are understood, which cannot change memory, and what happens to the others.

A key that is in neither list and whose name speaks of attention, caches or layers is refused by name where it says
something: a model with it may keep more or less than its other keys tell.
"""

import re
from typing import Final

from kvbudget.shapes.keys import Keys, short

_USED: Final = """
attention_bias attention_chunk_size attention_k_eq_v attn_config attn_layer_offset attn_layer_period attn_output_gate
audio_config block_configs compress_ratios conv_kernel d_model decoder_sparse_step dense_intermediate_size dtype
expand expert_dtype expert_intermediate_size expert_layer_offset expert_layer_period ffn_config ffn_hidden_size
first_k_dense_replace full_attention_interval global_head_dim hc_mult head_dim hidden_size hidden_size_per_layer_input
hybrid_layer_pattern hybrid_override_pattern index_head_dim index_n_heads index_skip_topk_offset index_topk_freq
indexer_types interleave_moe_layer_step intermediate_size intermediate_size_mlp kv_channels kv_lora_rank layer_types
layers_block_type linear_attn_config linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads
linear_num_value_heads linear_value_head_dim mamba_d_conv mamba_d_head mamba_d_ssm mamba_d_state mamba_dt_rank
mamba_expand mamba_head_dim mamba_n_groups mamba_n_heads mamba_num_heads mamba_ssm_cache_dtype mamba_ssm_dtype
max_position_embeddings max_seq_len max_window_layers mla_use_output_gate mlp_bias mlp_layer_types mlp_only_layers
model_type moe_intermediate_size moe_latent_size moe_layer_freq moe_layers moe_num_experts
moe_shared_expert_intermediate_size moe_top_k mtp_num_hidden_layers multi_query_attention multi_query_group_num n_embd
n_groups n_head n_head_kv n_heads n_inner n_layer n_layers n_positions n_routed_experts n_shared_experts
no_rope_layer_interval no_rope_layers num_attention_heads num_experts num_experts_per_tok num_experts_per_token
num_global_key_value_heads num_hidden_layers num_key_value_heads num_kv_shared_layers num_layers num_local_experts
num_mtp_modules num_nextn_predict_layers num_shared_experts num_sliding_attention_heads o_groups o_lora_rank
padded_vocab_size q_lora_rank qk_nope_head_dim qk_norm_type qk_rope_head_dim quantization_config rope_parameters
rope_scaling routed_expert_hidden_size seq_length share_expert_dim shared_expert_intermediate_size
shared_intermediate_size sliding_window sliding_window_pattern sparse_attention_config ssm_state_size state_size
swa_head_dim swa_num_attention_heads swa_num_key_value_heads swa_v_head_dim text_config tie_word_embeddings
time_step_rank top_k_experts torch_dtype use_double_wide_mlp use_qk_norm use_sliding_window v_head_dim vision_config
vision_parameters vocab_size vocab_size_per_layer_input
"""
_HARMLESS: Final = """
_attn_implementation _sliding_window_pattern add_full_attention_sink_bias add_qkv_bias
add_swa_attention_sink_bias attention_dropout attention_head_dim attention_logit_softcapping attention_multiplier
attention_output_gate attention_probs_dropout_prob attention_softmax_in_fp32 attention_value_scale attn_dropout_rate
attn_factor attn_implementation attn_logit_softcap attn_logit_softcapping attn_pdrop attn_res_block_size attn_scale
attn_temperature_tuning auto_map cache_implementation chunk_size chunk_size_feed_forward
classifier_dropout cross_attention_hidden_size dual_chunk_attention_config embd_layer_norm expert_model_parallel_size
final_layernorm floor_scale fp32_residual_connection hidden_dropout hidden_dropout_prob image_token_index index_kpool
index_share_for_mtp_iteration index_topk index_topk_pattern indexer_rope_interleave insert_layer_id kv_cache_scheme
latent_moe_use_norm layer_norm_eps layer_norm_epsilon layer_norm_type layer_scale layerdrop layernorm_epsilon
linear_lower_bound mamba_chunk_size mamba_conv_bias mamba_hidden_act mamba_norm_before_gate mamba_proj_bias
mamba_rms_norm mamba_use_mlp max_source_positions mlp_hidden_act mtp_hybrid_override_pattern mtp_layers_block_type
mtp_transformer_layers mtp_use_dedicated_embeddings n_kpool num_hash_layers num_logits_to_keep num_mem_blocks
num_memory_blocks num_reward_heads post_layer_norm pruned_heads qk_head_dim qk_layernorm qkv_bias
query_pre_attn_scalar rescale_prenorm_residual resid_pdrop residual_in_fp32 rotary_dim router_aux_loss_coef
router_jitter_noise swa_rope_theta use_bias use_bidirectional_attention use_cache use_conv_bias
use_mamba_kernels use_parallel_residual use_pre_norm_residual vision_feature_layer vision_feature_select_strategy
vision_soft_tokens_per_image
"""
"""At most what is computed depends on these, not what is kept."""
_KNOWN: Final = frozenset(_USED.split()) | frozenset(_HARMLESS.split())
_TELLING: Final = re.compile(
    r"attn|attention|cache|(^|_)kv|window|layer|head|state|ssm|mamba|conv(_|$)|recurren|latent|lora|compress|"
    r"sparse|index|shar|memory|mem_|slid|chunk|hybrid|linear|local|global|retention|lightning|pattern|cross|"
    r"multi_query$|query_group|gqa|num_loop|ut_steps|encoder_decoder"
)
_ELSEWHERE: Final = re.compile(r"vision|image|img|video|audio|projector|activation|^(ignore|router|moe_shared)_")
"""Keys that speak of something else than the text model's mixers."""
_TRIFLES: Final = (
    "_token_id", "_token", "_token_index", "_eps", "_dropout", "_act", "_theta", "_std", "_multiplier", "_multipliers",
)  # fmt: skip
"""Ends of keys that scale or mark something."""


def _repeats(keys: Keys, key: str, value: object) -> bool:
    """Whether a key that could say something new only repeats what is read anyway."""
    match key:
        case "attn_type_list":  # MiniMax: 1 is attention, 0 a linear layer
            return isinstance(value, list) and all(entry == 1 for entry in value)
        case "sliding_window_size":
            return value == keys.config.get("sliding_window")
        case "order_of_interleaved_layers":  # Cohere: as sliding_window_pattern has it
            return value == "local_attn_first" and keys.has("sliding_window_pattern", "layer_types")
        case "layer_switch":
            return value == keys.config.get("sliding_window_pattern")
        case _:
            return False


def refuse_unknown(keys: Keys) -> None:
    """Raises ShapeError for the first key that could change what a layer keeps and is not understood."""
    for key, value in keys.config.items():
        if key in _KNOWN or not _TELLING.search(str(key).lower()) or not keys.has(str(key)):
            continue
        if _ELSEWHERE.search(str(key)) or str(key).endswith(_TRIFLES) or _repeats(keys, str(key), value):
            continue
        keys.fail(
            f"{key} is {short(value)}: not known, and its name says that it could change what a layer keeps; "
            "set spec.model.shape by hand, or remove the key if it does not"
        )
