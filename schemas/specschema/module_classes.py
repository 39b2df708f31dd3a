"""The class of a CUDA graph node by the module that added it (rule D5): table and prefixes, no model's code.

A module's own name and class say what it is; what lies inside a Mixture-of-Experts block is ``moe`` whatever its name, so
the blocks of a model are found first: the parent of every ``experts`` module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple


class ModuleRule(NamedTuple):
    """One rule: tried in order on the last part of the module path and on its class.

    ``bucket`` None: the module does not decide (a container, or one that holds several kinds); the kernel's name does.
    """

    name: str
    class_name: str
    bucket: str | None
    subclass: str
    origin: str


class ModuleClass(NamedTuple):
    """Decision about one module: ``bucket`` None where the kernel's name has to decide."""

    bucket: str | None
    subclass: str


LOGITS: Final = "logits"
"""Finer class of a module that makes logits. It runs the vocabulary projection itself, with ``lm_head``'s weight but not through that
module, and gathers and casts what comes of it: see ``inside_logits``."""

OPERATOR: Final = "operator"
"""Class of a node that an operator added where no module is known: the last part of its path is the operator's name."""

EXPERTS_NAME: Final = re.compile(r"^(experts|shared_experts?|routed_experts)$")
EXPERTS_CLASS: Final = re.compile(r"FusedMoE|DeepEPMoE|EPMoE|GroupedExperts|^Experts|SharedFusedMoE|MoEExperts")
BLOCK_CLASS: Final = re.compile(r"(Sparse)?(Moe|MoE|MixtureOfExperts)(Block|Layer)?$|MoEGate|MoeMLP")
"""Modules that are a MoE block themselves: Qwen3MoeSparseMoeBlock, DeepseekV2MoE, MixtralMoE, ..."""
ATTENTION_NAME: Final = re.compile(r"^(self_attn|self_attention|attn|attention|cross_attn|linear_attn|mixer)$")
ATTENTION_CLASS: Final = re.compile(r"Attention|RadixAttention|MLA")

IN_MOE: Final = (
    ModuleRule(
        r"^(gate|router)$", r"Router|MoEGate", "moe", "router", "SGLang, vLLM, transformers: the router's linear"
    ),
    ModuleRule(r"^topk$", r"^TopK", "moe", "topk", "SGLang TopK"),
    ModuleRule(r"^shared_experts?", r"Shared", "moe", "shared_experts", "DeepSeek-V2/V3, Qwen2-MoE, Kimi-K2"),
    ModuleRule(r"^experts$", EXPERTS_CLASS.pattern, "moe", "experts", "SGLang, vLLM: the grouped experts"),
    ModuleRule(r"", r"", "moe", "moe_block", "whatever else runs inside the block"),
)
IN_ATTENTION: Final = (
    ModuleRule(r"(^|_)(o_proj|out_proj|dense|c_proj|wo)$", r"", "gemm", "o_proj", "the output projection"),
    ModuleRule(
        r"_proj|_proj_with_mqa$|^w[qkv]|qkv|query_key_value",
        r"",
        "gemm",
        "qkv_proj",
        "q, k, v, MLA's a and b projections",
    ),
    ModuleRule(r"", r"Linear", "gemm", "attention_linear", "a linear layer of another name"),
    ModuleRule(r"rotary|rope", r"Rotary", "attention", "rotary", "rotary embedding belongs to the attention core (D5)"),
    ModuleRule(r"norm", r"Norm", "attention", "qk_norm", "q and k norms belong to the attention core (D5)"),
    ModuleRule(r"", r"", "attention", "attention_core", "the core with its copies and cache writes"),
)
ELSEWHERE: Final = (
    ModuleRule(r"^(lm_head|output_projection|embed_out)$", r"LMHead", "gemm", "lm_head", "the vocabulary projection"),
    ModuleRule(
        r"^logits_processor$", r"^LogitsProcessor", None, LOGITS, "SGLang, vLLM: it uses lm_head's weight itself"
    ),
    ModuleRule(r"norm|^ln_", r"Norm", "other_compute", "norm", "layer norms"),
    # before embeddings: every RotaryEmbedding is one by its name
    ModuleRule(r"rotary|rope", r"Rotary", "other_compute", "rotary", "rotary tables outside attention"),
    ModuleRule(r"embed", r"Embedding", "other_compute", "embedding", "token embedding"),
    ModuleRule(
        r"^act(_fn|ivation)?$", r"SiluAndMul|GeluAndMul|Activation", "other_compute", "activation", "of a dense MLP"
    ),
    ModuleRule(r"^fc$", r"", "gemm", "draft_fc", "EAGLE's fusion of hidden states"),
    ModuleRule(
        r"^(gate_up|gate|up|down)_proj$|^c_(fc|proj)$|^fc[12]$|^w[123]$",
        r"",
        "gemm",
        "mlp",
        "a dense MLP's linear layers",
    ),
    ModuleRule(r"_proj$", r"Linear", "gemm", "linear", "any other linear layer"),
    ModuleRule(r"sampler", r"Sampler", "other_compute", "sampling", "sampling"),
    ModuleRule(r"", r"", None, "container", "decoder layers, models, logits processors hold several kinds"),
)

OPERATORS: Final = (
    ModuleRule(
        r"^vllm::moe_forward(_shared)?$", "", "moe", "moe_block", "vLLM: the fused experts, with top-k and sorting"
    ),
    ModuleRule(
        r"^vllm::unified_(mla_)?(attention(_with_output)?|kv_cache_update)$",
        "",
        "attention",
        "attention_core",
        "vLLM: the attention core and its cache writes",
    ),
    ModuleRule("", "", None, OPERATOR, "any other operator: the kernel's name decides"),
)


def inside_logits(bucket: str) -> ModuleClass | None:
    """Class of a kernel in a module of finer class LOGITS, by the bucket of its name.

    The one matrix product there is the vocabulary projection; None where the name says what a logits module does not hold (then the
    name decides).
    """
    if bucket == "gemm":
        return ModuleClass("gemm", "lm_head")
    return ModuleClass("other_compute", LOGITS) if bucket == "other_compute" else None


def _first(rules: Sequence[ModuleRule], name: str, class_name: str) -> ModuleClass:
    for rule in rules:
        by_name = bool(rule.name) and re.search(rule.name, name) is not None
        by_class = bool(rule.class_name) and re.search(rule.class_name, class_name) is not None
        if by_name or by_class or not (rule.name or rule.class_name):
            return ModuleClass(rule.bucket, rule.subclass)
    raise AssertionError("the last rule of every list matches")


def _in_block(below: str, name: str, class_name: str) -> ModuleClass:
    """Class of a module of a MoE block, by its path below the block: what lies in shared experts or experts is theirs, but for the
    block's own router, which vLLM's fused experts hold (``experts.gate``)."""
    parts = below.split(".")
    for place, part in enumerate(parts[:-1]):
        if EXPERTS_NAME.match(part):
            shared = part.startswith("shared")
            own = _first(IN_MOE, name, class_name)
            if not shared and place == len(parts) - 2 and own.subclass == "router":
                return own
            return ModuleClass("moe", "shared_experts" if shared else "experts")
    return _first(IN_MOE, name, class_name)


def _parents(path: str) -> list[str]:
    """``a.b.c`` -> ``a``, ``a.b``, ``a.b.c``."""
    parts = path.split(".")
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def moe_blocks(modules: Iterable[tuple[str, str]]) -> set[str]:
    """Paths of the Mixture-of-Experts blocks among (path, class) pairs."""
    blocks = set()
    for path, class_name in modules:
        if class_name == OPERATOR:
            continue
        parent, _, name = path.rpartition(".")
        if (EXPERTS_NAME.match(name) or EXPERTS_CLASS.search(class_name)) and parent:
            blocks.add(parent)
        elif BLOCK_CLASS.search(class_name) and not re.search(r"Model|Layer$|ForCausalLM|Attention", class_name):
            blocks.add(path)
    return blocks


def classify_modules(modules: Sequence[tuple[str, str]]) -> list[ModuleClass]:
    """Class of each module of one captured model.

    Args:
        modules: (dotted path, class name) of every module that added a node. Parts of a path are the names that modules have in their
            parents or, where a profiler knows no others, their classes.

    Returns:
        One decision each, in order.
    """
    return list(_decided(tuple(modules)))


@lru_cache(maxsize=16)  # every window of every rank asks for the same model's
def _decided(modules: tuple[tuple[str, str], ...]) -> tuple[ModuleClass, ...]:
    blocks = moe_blocks(modules)
    classes = dict(modules)
    decided = []
    for path, class_name in modules:
        above = _parents(path)
        name = path.rpartition(".")[2]
        inside = [p for p in above if p in blocks]
        if class_name == OPERATOR and not inside:
            decided.append(_first(OPERATORS, name, ""))
        elif inside:
            decided.append(_in_block(path[len(inside[0]) + 1 :], name, class_name))
        elif any(
            ATTENTION_NAME.match(part := p.rpartition(".")[2]) or ATTENTION_CLASS.search(f"{part} {classes.get(p, '')}")
            for p in above
        ):
            decided.append(_first(IN_ATTENTION, name, class_name))
        else:
            decided.append(_first(ELSEWHERE, name, class_name))
    return tuple(decided)
