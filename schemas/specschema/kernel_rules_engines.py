"""Kernel classes of serving engines' work around the layers: drafts, sampling, KV cache, norms, rotary, quantisation."""

from __future__ import annotations

from typing import Final

from specschema.kernel_rule import KernelRule

_OTHER: Final = "other_compute"
_FLASHINFER: Final = "FlashInfer 0.6 to 0.7 include/flashinfer"

BOOKKEEPING: Final = (
    KernelRule(
        r"\bbuild_tree_(?:efficient|kernel)|\bsgl_build_tree_kernel|\b_build_(?:chain_)?tree_kernel|"
        r"\breconstructindicesfromtreemask|"
        r"\b_reconstruct_tree_mask|\b_pack_verify_mask|\borganize_draft",
        _OTHER,
        "tree",
        "SGLang sgl-kernel csrc/speculative/eagle_utils.cu; kernels/ops/speculative",
    ),
    KernelRule(
        r"\bverify_?tree_?greedy|\btree_?speculative_?sampling|\bchainspeculativesampling|"
        r"\bspeculative_sampling_classic",
        _OTHER,
        "verify",
        "SGLang sgl-kernel csrc/speculative; " + _FLASHINFER + "/sampling.cuh",
    ),
    KernelRule(
        r"\brejection_(?:greedy|random)_sample_kernel|\b_\w*rejection(?:_sample)?_kernel|"
        r"\bsample_recovered_tokens_kernel|"
        r"\b_resample_kernel|\b_insert_resampled|\b_compute_(?:global|local)_(?:logits_stats|residual|"
        r"lse|target)|^expand_kernel$|"
        r"\b_(?:simulated_accept|verify_commit_outputs|dflash_accept_bonus\w*|finalize_accept_lens|"
        r"static_accept_tail|fused_correct_drafts_and_bonus|mixed_accept_select)_kernel",
        _OTHER,
        "verify",
        "vLLM v1/sample/rejection_sampler.py, v1/worker/gpu/spec_decode; SGLang kernels/ops/speculative",
    ),
    KernelRule(
        r"\b_draft_topk1_|\b_draft_step_kernel|\bfast_topk_kernel|\b_cache_draft_logits_kernel|"
        r"\b_markov_|\b_update_(?:draft|eagle)_inputs_kernel|"
        r"\b_xpress_",
        _OTHER,
        "draft",
        "SGLang 0.5.17 kernels/ops/speculative/topk1.py; vLLM v1/worker/gpu/spec_decode",
    ),
    KernelRule(
        r"\bassign_(?:draft_cache_locs|req_to_token_pool|extend_cache_locs|new_state_kernel|"
        r"hidden_states_pool_kernel)|"
        r"\bcreate_extend(?:_after_decode)?_spec_info|\bgenerate_draft_decode_\w*kv_indices|"
        r"\balign_evict_mask|\bget_target_cache_loc|"
        r"\bfilter_finished_cache_loc|\bfill_(?:bonus_tokens|new_verified_id|"
        r"accept(?:ed)?_out_cache_loc|draft_extend|widened)|"
        r"\b_prepare_draft_extend_lengths|\b_draft_extend_(?:inputs|metadata)_kernel|"
        r"\brotate_input_ids|\bcompute_widened_draft|"
        r"\b(?:un)?pad_draft_extend_(?:query|output)|\b_commit_inject_layout|"
        r"\b_gather_draft_sampled_kernel|\b_pad_trailing_draft_slots",
        _OTHER,
        "draft",
        "SGLang 0.4.6 to 0.5.23 speculative/eagle_utils.py, eagle_info_v2.py, kernels/ops/speculative",
    ),
    KernelRule(
        r"\beagle_(?:prepare|step)_|\b_prepare_(?:eagle_\w+|prefill_inputs|decode_inputs|dflash_\w+|"
        r"eagle_docode)_kernel|\bcopy_and_expand_(?:eagle|dflash)_inputs",
        _OTHER,
        "draft",
        "vLLM 0.11 to 0.33 v1/spec_decode, v1/worker/gpu/spec_decode",
    ),
    KernelRule(
        r"\b(?:topk|topp|minp|topktopp)\w*(?:sampling|renorm|mask)|\bsamplingfrom|\bonlinesoftmax|"
        r"\bradixtopk|\bairtopp|\bflashinfer::sampling::",
        _OTHER,
        "sampling",
        _FLASHINFER + "/sampling.cuh, topk.cuh, air_top_p.cuh",
    ),
    KernelRule(
        r"\b_?gumbel\w*_kernel|\b_temperature_kernel|\b_?penalties_kernel|"
        r"\bapply_repetition_penalties|\b_min_p_kernel|\b_topk_(?:topp|log_softmax)|"
        r"\b_topp_|\b_ranks_kernel|\b_bad_words_kernel|\blogitsbitmaskkernel|\bapply_token_bitmask|"
        r"\b_bincount_kernel|\b_(?:row_)?argmax|\bargmax_kernel|"
        r"\bsampled_topk|\b_watermark|\bresolve_future_token_ids|\b_prompt_logprobs|\b_logprob|\b_row_logsumexp",
        _OTHER,
        "sampling",
        "vLLM v1/worker/gpu/sample, csrc/sampler.cu; SGLang kernels/ops/speculative/row_argmax.py; xgrammar",
    ),
)
"""Speculation and sampling; first of the engines' rules, since these names mention kv, topk and experts."""

ELEMENTWISE: Final = (
    # KV cache: writes, moves, slot allocation. Only a node map can say that a write belongs to an attention layer.
    KernelRule(
        r"\bset_(?:mla_)?kv_(?:buffer|concat)|\bstore_(?:kv)?_?cache|\breshape_and_cache|"
        r"\b_?reshape_cache|\bconcat_(?:and_cache_)?(?:ds_)?mla|\bconcat_and_ca|"
        r"\bconcatmla|\bappendpagedkv|\b(?:nvfp4)?quantizeappend|\btransfer_kernel_impl|\bhicache_|"
        r"\bcopy_all_layer_kv_cache|\bmove_kv_cache|"
        r"\bcp_gather_|\bgather_and_maybe_dequant_cache|\bswap_blocks|\b_swap_blocks|\bget_mla_kv|"
        r"\boffload_to_cpu|\bfused_store_\w*cache|\bfused_fp8_qkv_kv_cache",
        _OTHER,
        "kv_cache",
        "vLLM csrc/cache_kernels.cu; SGLang mem_cache/memory_pool.py, kernels/jit/csrc/elementwise/kvcache.cuh; "
        + _FLASHINFER
        + "/page.cuh",
    ),
    KernelRule(
        r"\balloc_(?:extend|decode)_kernel|\bwrite_req_to_token|\bget_last_loc_kernel|"
        r"\bcompute_position_kernel|\bclamp_position_kernel|\b_compute_slot_mapping",
        _OTHER,
        "kv_cache",
        "SGLang mem_cache/paged_allocator.py, managers/schedule_batch.py, clamp_position.cuh; vLLM "
        "v1/worker/block_table.py",
    ),
    KernelRule(
        r"\bcausal_conv1d|\bselective_(?:scan|state)|\bchunk_(?:gated|delta|fwd|scaled|local|kda|"
        r"state)|\bfused_(?:recurrent|kda|sigmoid_gating)|\brecurrent_gated|"
        r"\b_chunk_|\b_?gdn_|\b_?kda_|\bmamba|\b_?ssd_|\blightning_attn|\bsolve_tril|\bmerge_16x16|"
        r"\brecompute_w_u|\bcheckpointing_ssu",
        _OTHER,
        "linear_attention",
        "flash-linear-attention and Mamba kernels in SGLang srt/layers/attention/fla, mamba and vLLM csrc/mamba",
    ),
    KernelRule(
        r"\bfused_?\w*(?:qk|q|k|kv)_?norm\w*rope|\bfused_norm_rope|\bfused_qknorm|"
        r"\b_?(?:\w+_)?qk_?(?:rms)?norm|\bfusedqknormrope|\bqk_?rmsnorm",
        _OTHER,
        "norm",
        "TensorRT-LLM fusedQKNormRopeKernel in SGLang and vLLM; SGLang elementwise/qknorm.cuh, fused_qknorm_rope.cuh",
    ),
    KernelRule(
        r"\b\w*(?:rms_?norm|layer_?norm|l2norm|group_?norm)|\bln_fwd_kernel|\bfused_add_rms|"
        r"\bnorm_residual|\b_norm_kernel|\bfused_dual_residual",
        _OTHER,
        "norm",
        _FLASHINFER + "/norm.cuh; vLLM csrc/layernorm_kernels.cu; SGLang elementwise/rmsnorm.cuh",
    ),
    KernelRule(
        r"\bck_tile::kentry.*(?:rms|layer)norm2d|ck_tile\w*kentry\w*(?:rms|layer)norm2d",
        _OTHER,
        "norm",
        "ROCm composable_kernel ck_tile norms, recorded on MI300X",
        True,
    ),
    KernelRule(
        r"\b\w*rotary|\b_?(?:\w+_)?rope(?:_|quant|$)|\b_triton_mrope|\bapplymlarope",
        _OTHER,
        "rotary",
        "vLLM csrc/pos_encoding_kernels.cu; SGLang elementwise/rope.cuh; " + _FLASHINFER + "/pos_enc.cuh",
    ),
    KernelRule(
        r"\b_?per_token_(?:group_)?quant|\bper_tensor_quant|\bscaled_(?:fp8|int8)_quant|"
        r"\bdynamic_per_token_scaled|\b(?:dynamic_|static_)?scaled_int8|\b_?static_quant|"
        r"\b_?quantize_|\bconvert_fp8|\bsegmented_max_reduction|\babsmax_reduction|"
        r"\b(?:full_page_)?dequant|\b_dequant|\bscale_1x128|\bcomputefp8",
        _OTHER,
        "quantisation",
        "vLLM csrc/quantization; SGLang sgl-kernel csrc/gemm; TensorRT-LLM quantization.cuh",
    ),
    KernelRule(
        r"\b(?:\w*_)?cvt_(?:fp16|bf16|fp8|fp4|e4m3)|\bnvfp4_\w*quant|\bmxfp[48]_\w*quant|"
        r"\bquantize_with_block_size|\bblock_?scale_?interleave|"
        r"\b_(?:downcast_to|upcast_from)_mxfp|\bfp4_quantize",
        _OTHER,
        "quantisation",
        "vLLM csrc/quantization/fp4; TensorRT-LLM quantization.cuh; triton_kernels",
    ),
    KernelRule(
        r"\bdeep_gemm::(?:\w+::)*transpose|\btranspose_(?:and_pack_)?fp32|\bpack_fp32_into_ue8m0|"
        r"\b_tma_align_input_scale|\b\w*hadamard",
        _OTHER,
        "quantisation",
        "deepseek-ai/DeepGEMM impls/smxx_layout.cuh; hadacore; fast-hadamard-transform",
    ),
    KernelRule(
        r"\b\w*act_and_mul|\b_?(?:silu|gelu|swiglu\w*|situ)_(?:and_)?mul|\b_(?:silu|gelu|swiglu|"
        r"relu_squared)_|^_swiglu|\bactivation_kernel|\bact_kernel|\b_?sigmoid_(?:gate_)?mul|"
        r"\bfused_softcap|\bbias_gelu|\b(?:silu|gelu|tanh|relu)_kernel",
        _OTHER,
        "activation",
        "vLLM csrc/activation_kernels.cu; SGLang elementwise/activation.cuh; FlashInfer "
        "activation.cuh (dense MLP and experts alike)",
    ),
    KernelRule(
        r"\b_vocab_parallel_embedding|\bvocab_parallel_embedding|\bembedding_kernel|\bcomputengramids|"
        r"\bget_masked_input",
        _OTHER,
        "embedding",
        "SGLang kernels/ops vocab_parallel_embedding; vLLM 0.33 (binary symbols)",
    ),
    KernelRule(
        r"\b_gather_rows_kernel|\bgather_scatter_kernel|\b_small_copy_kernel|\bbatch_memcpy_kernel|"
        r"\bcopy_to_gpu_no_ce|\b_fused_slot_copy|\bmemcpy_kernel",
        _OTHER,
        "copy",
        "SGLang 0.5.17 kernels/ops/memory, custom_all_reduce.cuh (memcpy_kernel: into the rank's own "
        "buffer); vLLM v1/worker/mamba_utils.py",
    ),
    KernelRule(
        r"^add3_kernel|^[sd]axpy(?:_kernel)?$|^[sd]?axpy_kernel|\battn_res_(?:fwd|fused)",
        _OTHER,
        "elementwise",
        "SGLang elementwise/add3.cuh and attn_res (residual stream, not attention); BLAS level 1: y = a x + y",
    ),
)
"""Work around the layers. Whether a norm, a rotary embedding or a cache write belongs to attention or MoE is for the
node map to say; by name it is other_compute."""
