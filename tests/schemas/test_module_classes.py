"""Classes by module, on the modules of real captures (embedded engine and SGLang 0.5.17 on H200)."""

from __future__ import annotations

from specschema.module_classes import OPERATOR, ModuleClass, classify_modules, inside_logits

MODULES = {
    ("TargetModel", "TargetModel"): (None, "container"),
    ("TargetModel.rotary_emb", "RotaryEmbedding"): ("other_compute", "rotary"),
    ("TargetModel.embed_tokens", "TokenEmbedding"): ("other_compute", "embedding"),
    ("TargetModel.layers.0.mlp", "MoE"): ("moe", "moe_block"),
    ("TargetModel.layers.0.mlp.experts", "GroupedExperts"): ("moe", "experts"),
    ("TargetModel.layers.0.mlp.experts.w1", "Linear"): ("moe", "experts"),
    ("TargetModel.layers.0.mlp.gate", "ColumnParallelLinear"): ("moe", "router"),
    ("TargetModel.layers.0.mlp.topk", "TopK"): ("moe", "topk"),
    ("TargetModel.layers.0.mlp.shared_expert", "GatedMLP"): ("moe", "shared_experts"),
    ("TargetModel.layers.0.mlp.shared_expert.down_proj", "ColumnParallelLinear"): ("moe", "shared_experts"),
    ("TargetModel.layers.0.self_attn.attn", "CachedAttention"): ("attention", "attention_core"),
    ("TargetModel.layers.0.self_attn.qkv_proj", "ColumnParallelLinear"): ("gemm", "qkv_proj"),
    ("TargetModel.layers.0.self_attn.o_proj", "RowParallelLinear"): ("gemm", "o_proj"),
    ("TargetModel.lm_head", "ColumnParallelLinear"): ("gemm", "lm_head"),
    ("TargetModel.sampler", "GreedySampler"): ("other_compute", "sampling"),
    ("DraftModel.fc", "ColumnParallelLinear"): ("gemm", "draft_fc"),
    ("DraftModel.input_proj", "ColumnParallelLinear"): ("gemm", "linear"),
    ("DraftModel.mlp", "GatedMLP"): (None, "container"),
    ("DraftModel.mlp.gate_up_proj", "ColumnParallelLinear"): ("gemm", "mlp"),
    ("LlamaModel.fc", "Linear"): ("gemm", "draft_fc"),
    ("LlamaModel.layers.0.mlp.down_proj", "RowParallelLinear"): ("gemm", "mlp"),
    ("LlamaModel.layers.0.mlp.act_fn", "SiluAndMul"): ("other_compute", "activation"),
    ("LlamaModel.layers.0.self_attn.rotary_emb", "RotaryEmbedding"): ("attention", "rotary"),
    ("LlamaModel.layers.0.hidden_norm", "RMSNorm"): ("other_compute", "norm"),
    ("LogitsProcessor", "LogitsProcessor"): (None, "logits"),
    ("Qwen3ForCausalLM.logits_processor", "LogitsProcessor"): (None, "logits"),
    ("Qwen3MoeModel.layers.0.self_attn", "Qwen3MoeAttention"): ("attention", "attention_core"),
    ("Qwen3MoeModel.layers.0.mlp", "Qwen3MoeSparseMoeBlock"): ("moe", "moe_block"),
    ("Qwen3MoeModel.layers.0.mlp.experts", "FusedMoE"): ("moe", "experts"),
    ("Qwen3MoeModel.layers.0.mlp.gate", "ReplicatedLinear"): ("moe", "router"),
    ("Qwen3MoeModel.layers.0.mlp.experts.gate", "ReplicatedLinear"): ("moe", "router"),
    ("Qwen3MoeModel.layers.0.mlp.experts.0.gate_proj", "ColumnParallelLinear"): ("moe", "experts"),
    ("Qwen3MoeModel.layers.0", "Qwen3MoeDecoderLayer"): (None, "container"),
}


def test_modules_of_real_captures() -> None:
    assert dict(zip(MODULES, map(tuple, classify_modules(list(MODULES))), strict=True)) == MODULES


def test_the_product_of_a_logits_module_is_the_vocabulary_projection() -> None:
    assert inside_logits("gemm") == ModuleClass("gemm", "lm_head")
    assert inside_logits("other_compute") == ModuleClass("other_compute", "logits")
    for other in ("attention", "moe", "allreduce", "other_comm", "memcpy"):
        assert inside_logits(other) is None


def test_operators_decide_only_where_a_server_made_them_for_one_block() -> None:
    operators = [
        ("m.GraphModule.vllm::moe_forward", "moe", "moe_block"),
        ("m.GraphModule.vllm::unified_attention_with_output", "attention", "attention_core"),
        ("m.GraphModule.vllm::unified_kv_cache_update", "attention", "attention_core"),
        ("m.GraphModule._C::rotary_embedding", None, "operator"),
        ("aten::embedding", None, "operator"),
        ("m.trtllm::FusedMoE", None, "operator"),
    ]
    decided = classify_modules([*((path, OPERATOR) for path, *_ in operators), ("m.fc", "Linear")])
    assert [tuple(module) for module in decided[:-1]] == [(bucket, finer) for _, bucket, finer in operators]
    assert decided[-1].bucket == "gemm", "an operator's name makes no Mixture-of-Experts block of what lies beside it"


def test_paths_of_classes_say_what_attention_is() -> None:
    """A profiler's paths; the attention module itself adds no node."""
    modules = {
        ("LlamaModel.layers.0.LlamaAttention.QKVParallelLinear", "QKVParallelLinear"): ("gemm", "attention_linear"),
        ("LlamaModel.layers.0.LlamaAttention.RotaryEmbedding", "RotaryEmbedding"): ("attention", "rotary"),
        ("LlamaModel.layers.0.LlamaAttention.RMSNorm_0", "RMSNorm"): ("attention", "qk_norm"),
        ("LlamaModel.layers.0.RMSNorm_0", "RMSNorm"): ("other_compute", "norm"),
        ("Model.layers.0.DeepseekV2MoE.FusedMoE", "FusedMoE"): ("moe", "experts"),
        ("Model.layers.0.DeepseekV2MoE.MoEGate", "MoEGate"): ("moe", "router"),
        ("Model.layers.0.DeepseekV2MoE.DeepseekV2MLP.SiluAndMul", "SiluAndMul"): ("moe", "moe_block"),
    }
    assert dict(zip(modules, map(tuple, classify_modules(list(modules))), strict=True)) == modules
