"""Kernel classes of a model's own mathematics: MoE and attention. Matrix products outside MoE: kernel_rules_gemm."""

from __future__ import annotations

from typing import Final

from specschema.kernel_rule import KernelRule

_TRTLLM_GEN: Final = "TensorRT-LLM generated kernels (trtllm-gen) in FlashInfer"
_TRITON_KERNELS: Final = "triton-lang/triton python/triton_kernels, also vLLM third_party/triton_kernels"
_FLASHINFER: Final = "FlashInfer 0.6 to 0.7 include/flashinfer"
_DEEPGEMM: Final = "deepseek-ai/DeepGEMM deep_gemm/include/deep_gemm"
_FLASH: Final = "Dao-AILab/flash-attention"
_MOE_EP: Final = "SGLang srt/layers/moe/ep_moe/kernels.py; vLLM fused_moe/deep_gemm_utils.py"

MOE: Final = (
    KernelRule(
        r"^bmm_\w*(?:dynb|e2m1)",
        "moe",
        "experts",
        _TRTLLM_GEN + ": batched GEMM of the experts, recorded on B200 and B300",
    ),
    KernelRule(
        r"\b(?:_?fused_moe_|_?moe_)\w*lora|\bfused_moe_kernel|\bfused_moe_nvfp4|\bmoe_mmk|"
        r"\bbatched_triton_kernel|\bexpert_triton_kernel|\b_?grouped_gemm_(?:triton_)?kernel|"
        r"\b_mxfp8_grouped_gemm_kernel",
        "moe",
        "experts",
        "SGLang srt/layers/moe/fused_moe_triton; vLLM model_executor/layers/fused_moe; recorded on H200",
    ),
    KernelRule(
        r"\b_(?:p_)?matmul_ogs|\b_finalize_matmul_scatter|\b_masked_topk_sum|"
        r"^kernel_cutlass_\w*(?:grouped_?gemm|moe)",
        "moe",
        "experts",
        _TRITON_KERNELS + "; CuTe DSL grouped GEMM in FlashInfer; recorded on MI300X",
    ),
    KernelRule(
        r"groupproblemshape|moeproblemshape|gemmgrouped|moefcgemm|cutlass_kernels::\w*moe",
        "moe",
        "experts",
        "NVIDIA/cutlass grouped GEMM (GroupProblemShape, GemmGrouped); TensorRT-LLM MoE GEMM; "
        "PyTorch _grouped_mm, recorded on H200",
        True,
    ),
    KernelRule(
        r"\bprepare_grouped_gemm_data|\b_*(?:int4_fp8_)?get_group_gemm_starts|"
        r"\b\w*group_gemm_pre_compute|\bcompute_sm\d+_\w*group_gemm_args",
        "moe",
        "align",
        "PyTorch aten/src/ATen/native/cuda/GroupMM.cu; vLLM csrc/quantization; FlashInfer gemm/group_gemm_*.cuh",
    ),
    KernelRule(
        r"deep_gemm::gemmtype\)[12356]\b|8gemmtypee[12356]e|(?:\b|_)m_grouped_\w*gemm",
        "moe",
        "experts",
        _DEEPGEMM + "/common/types: GemmType 1, 2, 5 grouped by M, 3, 6 by K (0 dense, 4 batched)",
        True,
    ),
    KernelRule(r"\bmarlin_moe_wna16|\bmoe_wna16", "moe", "experts", "vLLM csrc/moe/marlin_moe_wna16, moe_wna16.cu"),
    KernelRule(
        r"\b_(?:prepare|norm_quant)_\w*mega_?moe",
        "moe",
        "align",
        "vLLM models/deepseek_v4/nvidia/ops/prepare_megamoe.py: inputs of mega-MoE",
    ),
    KernelRule(
        r"\b\w*mega_?moe",
        "moe",
        "experts with exchange",
        "DeepGEMM and FlashInfer mega-MoE: experts fused with the exchange of their tokens",
    ),
    KernelRule(
        r"\bmoe_(?:vec_)?q\d|\bmxfp4_matvec|\b\w*alpha_moe_(?:w8a8|nvfp4)|\bmonomoe|\b_(?:gate_up|down)_gemv",
        "moe",
        "experts",
        "SGLang and vLLM GGUF MoE; SGLang expert_pack_mxfp4.cuh; FlashInfer alphamoe; vLLM models/flint/ops/moe.py",
    ),
    KernelRule(
        r"\bmoe::dev::routing|\brouting(?:indices|mainkernel|init|custom|deepseek|llama4|renormalize)",
        "moe",
        "router",
        _TRTLLM_GEN + ": routing, recorded on B200 and B300",
    ),
    KernelRule(
        r"\btopkgating|\bmoe(?:softmax|sigmoid|topk)|\b\w*grouped_topk|\bsingle_group_topk|"
        r"\b\w*moe_fused_gate|\bbiased_grouped_topk|\bfused_moe_router|\bmoe_(?:hash_)?topk|"
        r"\bdeepseek_v3_topk_kernel|\b_hash_topk|\b_dsv4_topk_kernel|\b\w*alpha_moe_fused_router|"
        r"\b\w*route_(?:quant_fused|radix)",
        "moe",
        "topk",
        "vLLM csrc/moe/topk_softmax_kernels.cu, grouped_topk_kernels.cu; SGLang sgl-kernel csrc/moe",
    ),
    KernelRule(
        r"\b_topk_forward|\b_combined_routing|\b_sum_bitmatrix_rows|\b_compute_writeback_idx|"
        r"\b_?pack_bitmatrix|\b_expt_data|\b_routing_(?:compute|clear)",
        "moe",
        "router",
        _TRITON_KERNELS + " routing; recorded on MI300X",
    ),
    KernelRule(
        r"\b_router_(?:triton_|gate_|gemv_)?kernel|\b\w*router_gemm|\b_gemma4?_routing|"
        r"\binkling_gate_|\bfused_muse_spark_routing",
        "moe",
        "router",
        "SGLang kernels/ops/moe/moe_fused_gate.py, recorded on H200; dsv3_router_gemm in sgl-kernel",
    ),
    KernelRule(
        r"\bmoe_align_block_size|\bcount_and_sort_(?:checked_)?expert_tokens|\bbatched_moe_align|"
        r"\balign_single_token|\bmoe_lora_align|\blora_count_and_sort",
        "moe",
        "align",
        "vLLM csrc/moe/moe_align_sum_kernels.cu; SGLang sgl-kernel csrc/moe/moe_align_kernel.cu; recorded on H200",
    ),
    KernelRule(
        r"\bcompute_(?:expert_offsets|problem_sizes|expert_blockscale_offsets|arg_sorts|"
        r"batched_moe_data)|\bcomputeexpertoffsets|\bexpandinputrowskernel|\bshuffle(?:input)?rows|"
        r"\bpreprocesstopkid|\bpermutekernel|\bmoe_?(?:un)?permute|\b(?:block|global)expertprefixsum|"
        r"\bfusedbuildexpertmaps|\bbuildminlatencyactiveexpertmaps|\bcomputestridestmawarpspecialized|"
        r"\bmoe::dev::permute",
        "moe",
        "align",
        "TensorRT-LLM cutlass_fused_moe_kernels.cuh; vLLM csrc/moe; SGLang prepare_moe_input.cu",
    ),
    KernelRule(
        r"\b_fwd_kernel_ep_(?:scatter|gather)|\bdeepep_(?:permute|post_reorder|compute)|"
        r"\b(?:deepgemm_)?compute_(?:src2dst|seg_indptr|masked_m)|\bfill_gateup_input|"
        r"\b_?(?:pre|post)_reorder|\bapply_expert_map|\b_count_expert_num_tokens|"
        r"\b_fused_append_shared|\bwrite_zeros_to_output",
        "moe",
        "align",
        _MOE_EP,
    ),
    KernelRule(
        r"\bmoe_?sum|\b_moe_sum_reduce|\bmoe::dev::finalize|\bfinalize(?:kernel|deepseekkernel|"
        r"moerouting)|\bmoefinalize|\bapply_shuffle_mul_sum|\btopk_sum_kernel|"
        r"\bmoe_fused_mul_sum|\bexperts_combine_kernel|\b_shuffle_weighted_sum",
        "moe",
        "finalize",
        _TRTLLM_GEN + "; vLLM csrc/moe/moe_align_sum_kernels.cu; SGLang moe_sum_reduce",
    ),
    KernelRule(
        r"\bmoe::dev::(?:activation|convertsf)|\bdo(?:gated)?activationkernel|"
        r"\bactivationdeepseekkernel|\b_?silu_mul_fp8_quant_deep_gemm|\b_silu_and_mul_post_\w*quant|"
        r"\bmasked_\w*(?:act\w*|and_mul)_kernel",
        "moe",
        "activation",
        "TensorRT-LLM trtllm_fused_moe_dev_kernel.cu; SGLang ep_moe/kernels.py; vLLM "
        "batched_deep_gemm_moe.py: they take expert offsets or masks",
    ),
    KernelRule(
        r"\b(?:aiter::)?fmoe_|\bck_moe_|\bmoe_ck2stages|moesortingkernel|\bmoe_sorting",
        "moe",
        "experts",
        "ROCm/aiter fused MoE and composable_kernel MoE sorting",
        True,
    ),
    KernelRule(r"(?:^|::)moe::", "moe", "moe", "namespace moe:: of vLLM csrc/moe and of trtllm-gen"),
)
"""Router, top-k, alignment, experts and finalize. An activation or an elementwise kernel that dense layers use too is
not here: only the node map can say that it ran inside an MoE block."""

ATTENTION: Final = (
    KernelRule(
        r"\bfmhasm\d+\w*kernel|\bfmhareduction|\bfmhakernel|\bfmha_v2_",
        "attention",
        "core",
        _TRTLLM_GEN + ": FMHA, recorded on B200 and B300; TensorRT-LLM fmha_v2",
    ),
    KernelRule(
        r"\bcudnn_generated_\w*sdpa|\bcudnn::fusion::lean_reduction",
        "attention",
        "core",
        "cuDNN scaled dot-product attention and its split-KV reduction, recorded one for one on H200",
    ),
    KernelRule(
        r"flashattnfwd|flash::enable_sm\d+|flashattentionforward|flashattentionmlaforward|"
        r"fusedmultiheadattentionforward",
        "attention",
        "core",
        _FLASH + " hopper and flash_attn/cute; CUTLASS fmha example",
        True,
    ),
    KernelRule(
        r"\bflash::prepare_varlen_num_blocks|\bprepare_varlen_num_blocks|\b\w*flashpreparescheduler",
        "attention",
        "metadata",
        _FLASH + " hopper/flash_prepare_scheduler.cu",
    ),
    KernelRule(
        r"\bget_mla_metadata_kernel|\bflashmla_sched_meta|\bget_paged_mqa_logits_metadata|"
        r"\b\w*paged_mqa_logits_metadata",
        "attention",
        "metadata",
        "deepseek-ai/FlashMLA csrc; DeepGEMM",
    ),
    KernelRule(
        r"\bflash_fwd_|\bpytorch_flash::|\bflash::(?:\w+::)*flash_|\bflash_bwd_",
        "attention",
        "core",
        _FLASH + " csrc; deepseek-ai/FlashMLA; PyTorch's copy",
    ),
    KernelRule(
        r"\b(?:sparse_attn_fwd|sparse_mla_|_sparse_mla_|_sparse_attn_|_sparse_decode_|"
        r"_bf16_mla_sparse)|\bflash_c\d+_(?:online_)?(?:decode|prefill)|\bqprep_bf16_fp8",
        "attention",
        "core",
        "FlashMLA sparse kernels; SGLang 0.5.12 to 0.5.23 kernels/jit/csrc/deepseek_v4; vLLM 0.33",
    ),
    KernelRule(
        r"cutlass::fmha|sm100fmha|\bfmha_cutlass|mlakerneltma|ck_tile\w*fmhafwd|"
        r"ck_tile::\w+<.*fmhafwd|^kernel_cutlass_\w*fmha|\b(?:aiter::)?fmha_(?:fwd|bwd)_",
        "attention",
        "core",
        "SGLang sgl-kernel csrc/attention/cutlass_mla_kernel.cu; PyTorch mem_eff_attention; ROCm ck_tile and aiter",
        True,
    ),
    KernelRule(
        r"\b(?:batch|single)(?:decode|prefill)\w*kernel|\bbatchmla\w*kernel|\bbatchpod\w*kernel|"
        r"\bpodwith\w*kernel|\bprefillwithkvcachekernel|\bfp8prefillwithkvcache|"
        r"\bpersistentkerneltemplate|\battentionsumkernel|\bkernel_mha\b|\bxqa|\battention_kernel_ws|"
        r"\bdecode_gen_\w*reduction",
        "attention",
        "core",
        _FLASHINFER + "/attention",
    ),
    KernelRule(
        r"\bmergestates?\w*kernel|\bpersistentvariablelengthmergestates|\bvariablelengthmergestates|"
        r"\bmerge_attn_states|\bmerge_states?_kernel|\b_dcp_lse_combine|\b_correct_attn_cp_out|"
        r"\b_merge_attn",
        "attention",
        "merge",
        _FLASHINFER
        + "/attention/cascade.cuh; vLLM csrc/attention/merge_attn_states.cu; SGLang triton_ops/merge_state.py",
    ),
    KernelRule(
        r"\bpaged_attention_(?:v[12]|ll4mi)|\bpagedattention|\bsingle_query_cached_kv_attention",
        "attention",
        "core",
        "vLLM csrc/attention, csrc/rocm/attention.cu",
    ),
    KernelRule(
        r"(?:^|::)_fwd_(?:grouped_)?kernel(?!_(?:ep|dest))\w*$|\b_paged_decode|\b_verify_(?:prefix|"
        r"mla_prefix|combine|mla_combine)",
        "attention",
        "core",
        "SGLang srt/layers/attention/triton_ops (decode_attention.py, extend_attention.py), recorded "
        "on H200; vLLM attention/ops/prefix_prefill.py",
    ),
    KernelRule(
        r"\bkernel_(?:tq_|ultraquant_)?unified_attention|\breduce_segments|\b_attn_(?:fwd|packed)|"
        r"^attn(?:_fwd)?$|\b_split_kv_stage|\b_segmented_attention|\b_gqa_sparse|"
        r"\bkernel_paged_attention",
        "attention",
        "core",
        "vLLM v1/attention/ops/triton_unified_attention.py, triton_flash_attention.py; recorded on MI300X",
    ),
    KernelRule(
        r"\b\w*mqa_logits|\b\w*clean_logits|\btopk_transform|\b\w*indexer_|\bpersistent_topk|"
        r"\bcooperative(?:::|_)\w*topk|\bfilteredtopkunified|\b_topk_index_kernel|\b_lighting_indexer|"
        r"\btopk_(?:plan|split_hist|split_select|main_kernel)",
        "attention",
        "indexer",
        "DeepGEMM mqa_logits; SGLang sgl-kernel csrc/elementwise/topk.cu; deepseek_v4/topk_v2.cuh; "
        "vLLM 0.33: sparse attention's token selection",
    ),
    KernelRule(
        r"\bcreate_\w*kv_indices|\bget_num_kv_splits|\bnormal_decode_set_metadata|"
        r"\bcreate_chunked_prefix_cache_kv_indices|\bupdate_sliding_window_buffer|"
        r"\bfused_metadata_copy|"
        r"\b_copy_page_indices|\bplan_(?:kernel|prefill)|\b_gather_block_tables|\bcopy_block_table|\bget_block_table",
        "attention",
        "metadata",
        "SGLang srt/layers/attention/utils.py, triton_backend.py; vLLM "
        "v1/attention/backends/flashinfer.py: inputs of the attention kernels",
    ),
)
"""Attention cores, their merges, their token selection and their inputs."""
