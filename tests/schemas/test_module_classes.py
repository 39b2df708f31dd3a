"""Classes by module, on the modules of real captures (embedded engine and SGLang 0.5.17 on H200)."""

from __future__ import annotations

from specschema.module_classes import ModuleClass, classify_modules, inside_logits

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
    ("Qwen3MoeModel.layers.0", "Qwen3MoeDecoderLayer"): (None, "container"),
}


def test_modules_of_real_captures() -> None:
    assert dict(zip(MODULES, map(tuple, classify_modules(list(MODULES))), strict=True)) == MODULES


def test_the_product_of_a_logits_module_is_the_vocabulary_projection() -> None:
    assert inside_logits("gemm") == ModuleClass("gemm", "lm_head")
    assert inside_logits("other_compute") == ModuleClass("other_compute", "logits")
    for other in ("attention", "moe", "allreduce", "other_comm", "memcpy"):
        assert inside_logits(other) is None
