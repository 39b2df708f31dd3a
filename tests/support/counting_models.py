"""Tiny models that count, with a draft that is wrong at known tokens: each step's accept length is known beforehand.

    python counting_models.py FOLDER [LAYERS]

writes FOLDER/target (Qwen3-MoE), FOLDER/eagle3 and FOLDER/eagle (its drafts), FOLDER/draft (a draft model that stands alone) and
FOLDER/mtp (GLM-4-MoE with one multi-token-prediction layer; a configuration only, for dummy weights): real
configurations, weights and a byte-level tokenizer. Nothing is downloaded and nothing is trained.

Token t of the 256 byte tokens is the unit vector e(t), sixteen long, so that a norm leaves it as it is. Attention and
experts are random, but so weak that the residual stream stays e(t).

* The target's output head answers e(t) with t + 1: it counts.
* EAGLE-3's draft takes e(t) and turns it to e(t + 1): unit i of its MLP fires for token i alone and puts e(i + 1) in the
  place of e(i). Its head answers as the target's does, but for the tokens in WRONG, which it never says.
* EAGLE's draft has the target's own head, which says the right thing of e(t): its MLP turns e(t) where t + 1 is in WRONG.
* The draft model is a small target with the draft's head.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any, Final

TOKENS: Final = 256
VOCABULARY: Final = 320  # with the special tokens, a multiple of 64
SPECIALS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LAYERS: Final = 4
EXPERTS: Final = 8
HEADS: Final = 4
KV_HEADS: Final = 2
HEAD_SIZE: Final = 32
EXPERT_SIZE: Final = 64
LENGTH: Final = 16.0

WRONG: Final = frozenset(random.Random(11).sample(range(TOKENS), 56))
"""Tokens that the drafts get wrong."""


def accepted_drafts(last_token: int, drafts: int, tokens: int) -> list[int]:
    """Accepted drafts of each verify step.

    Args:
        last_token: the token before the first step, which prefill gave.
        drafts: drafts a step.
        tokens: tokens to generate with it; the last step may give more.
    """
    accepted = []
    token, left = last_token, tokens
    while left > 0:
        count = 0
        while count < drafts and (token + count + 1) % TOKENS not in WRONG:
            count += 1
        accepted.append(count)
        token = (token + count + 1) % TOKENS
        left -= count + 1
    return accepted


def accept_lengths(last_token: int, drafts: int, tokens: int) -> list[int]:
    """Tokens that each verify step commits: the accepted drafts and the bonus token, cut where the request ends."""
    lengths = [count + 1 for count in accepted_drafts(last_token, drafts, tokens)]
    lengths[-1] -= sum(lengths) - tokens
    return lengths


def counts_up(first: int, tokens: int) -> list[int]:
    """What the target says, from its first token on."""
    return [(first + i) % TOKENS for i in range(tokens)]


def _said_instead(token: int) -> int:
    """What a draft says where ``token`` would be right."""
    other = (token + TOKENS // 2) % TOKENS
    while other in WRONG:
        other = (other + 1) % TOKENS
    return other


class _Weights:
    """Makes tensors; the random ones are the same on every run."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self._generator = torch.Generator().manual_seed(0)

    def weak(self, *shape: int, scale: float = 0.02) -> Any:
        return self.torch.randn(*shape, generator=self._generator) * scale

    def embedding(self) -> Any:
        rows = self.torch.arange(VOCABULARY) % TOKENS  # a special token reads as a byte
        return LENGTH * self.torch.eye(TOKENS)[rows]

    def head(self, right: bool) -> Any:
        """Row of the token to say after t: e(t)."""
        rows = self.torch.zeros(VOCABULARY, TOKENS)
        for token in range(TOKENS):
            after = (token + 1) % TOKENS
            rows[after if right or after not in WRONG else _said_instead(after), token] = 1.0
        return rows

    def attention(self, prefix: str, inputs: int, norms: bool) -> dict[str, Any]:
        weights = {
            f"{prefix}q_proj.weight": self.weak(HEADS * HEAD_SIZE, inputs),
            f"{prefix}k_proj.weight": self.weak(KV_HEADS * HEAD_SIZE, inputs),
            f"{prefix}v_proj.weight": self.weak(KV_HEADS * HEAD_SIZE, inputs),
            f"{prefix}o_proj.weight": self.weak(TOKENS, HEADS * HEAD_SIZE, scale=0.001),
        }
        if norms:
            weights |= {f"{prefix}{name}_norm.weight": self.torch.ones(HEAD_SIZE) for name in "qk"}
        return weights

    def norms(self, prefix: str, *names: str) -> dict[str, Any]:
        return {f"{prefix}{name}.weight": self.torch.ones(TOKENS) for name in names}

    def mlp(self, prefix: str, size: int) -> dict[str, Any]:
        return {
            f"{prefix}gate_proj.weight": self.weak(size, TOKENS),
            f"{prefix}up_proj.weight": self.weak(size, TOKENS),
            f"{prefix}down_proj.weight": self.weak(TOKENS, size, scale=0.001),
        }

    def turning_mlp(self, prefix: str) -> dict[str, Any]:
        """Puts e(t + 1) in the place of e(t): unit i gives silu(16) * 16 = 256 for token i, and 0 for all others."""
        unit = self.torch.eye(TOKENS)
        turned = unit.roll(1, 0) - unit  # column i holds +1 at i + 1 and -1 at i
        return {
            f"{prefix}gate_proj.weight": unit,
            f"{prefix}up_proj.weight": unit,
            f"{prefix}down_proj.weight": turned * LENGTH / (LENGTH * LENGTH),
        }


def _configuration(architecture: str, kind: str, **more: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": kind,
        "vocab_size": VOCABULARY,
        "hidden_size": TOKENS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": TOKENS,
        "eos_token_id": TOKENS,
    } | more


def _target(weights: _Weights, layers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    configuration = _configuration(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        num_hidden_layers=layers,
        intermediate_size=4 * TOKENS,
        moe_intermediate_size=EXPERT_SIZE,
        num_experts=EXPERTS,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    )
    tensors = {"model.embed_tokens.weight": weights.embedding(), "lm_head.weight": weights.head(right=True)}
    tensors |= weights.norms("model.", "norm")
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors |= weights.attention(prefix + "self_attn.", TOKENS, norms=True)
        tensors |= weights.norms(prefix, "input_layernorm", "post_attention_layernorm")
        tensors[prefix + "mlp.gate.weight"] = weights.weak(EXPERTS, TOKENS, scale=0.5)
        for expert in range(EXPERTS):
            tensors |= weights.mlp(f"{prefix}mlp.experts.{expert}.", EXPERT_SIZE)
    return configuration, tensors


def _eagle3(weights: _Weights, layers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    states = [1, layers // 2, layers - 1]
    configuration = _configuration(
        "LlamaForCausalLMEagle3",
        "llama",
        num_hidden_layers=1,
        intermediate_size=TOKENS,
        draft_vocab_size=VOCABULARY,
        eagle_config={"eagle_aux_hidden_state_layer_ids": states},
        eagle_aux_hidden_state_layer_ids=states,  # where the V2 runner looks
    )
    unit = weights.torch.eye(TOKENS)
    tensors = {
        "fc.weight": weights.torch.cat([unit * 0, unit * 0, unit], dim=1),  # the last of the three states
        "lm_head.weight": weights.head(right=False),
    }
    tensors |= weights.norms("", "norm")
    tensors |= weights.norms("midlayer.", "hidden_norm", "input_layernorm", "post_attention_layernorm")
    tensors |= weights.attention("midlayer.self_attn.", 2 * TOKENS, norms=False)
    tensors |= weights.turning_mlp("midlayer.mlp.")
    return configuration, tensors


def _eagle(weights: _Weights, target: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    configuration = _configuration("EagleLlamaForCausalLM", "llama", num_hidden_layers=1, intermediate_size=TOKENS)
    unit = weights.torch.eye(TOKENS)
    turned = weights.torch.zeros(TOKENS, TOKENS)
    for token in range(TOKENS):
        after = (token + 1) % TOKENS
        if after in WRONG:  # what the head will say of e(t - 1) is t
            turned[:, token] = unit[(_said_instead(after) - 1) % TOKENS] - unit[token]
    tensors = {
        "embed_tokens.weight": target["model.embed_tokens.weight"],
        "fc.weight": weights.torch.cat([unit, unit * 0], dim=1),  # the token, not the target's state
        "layers.0.mlp.gate_proj.weight": unit,
        "layers.0.mlp.up_proj.weight": unit,
        "layers.0.mlp.down_proj.weight": turned * LENGTH / (LENGTH * LENGTH),
    }
    tensors |= weights.norms("layers.0.", "post_attention_layernorm")
    tensors |= weights.attention("layers.0.self_attn.", TOKENS, norms=False)
    return configuration, tensors


def _draft(weights: _Weights) -> tuple[dict[str, Any], dict[str, Any]]:
    configuration = _configuration("Qwen3ForCausalLM", "qwen3", num_hidden_layers=1, intermediate_size=TOKENS)
    prefix = "model.layers.0."
    tensors = {"model.embed_tokens.weight": weights.embedding(), "lm_head.weight": weights.head(right=False)}
    tensors |= weights.norms("model.", "norm")
    tensors |= weights.attention(prefix + "self_attn.", TOKENS, norms=True)
    tensors |= weights.norms(prefix, "input_layernorm", "post_attention_layernorm")
    tensors |= weights.mlp(prefix + "mlp.", TOKENS)
    return configuration, tensors


def _mtp() -> dict[str, Any]:
    return _configuration(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        num_hidden_layers=3,
        intermediate_size=2 * TOKENS,
        moe_intermediate_size=EXPERT_SIZE,
        n_routed_experts=EXPERTS,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.0,
        first_k_dense_replace=1,
        num_nextn_predict_layers=1,
        use_qk_norm=True,
        partial_rotary_factor=0.5,
    )


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import (  # type: ignore[import-not-found, unused-ignore]  # in the interpreter that has vLLM
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
    )

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIALS))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIALS[0],
        "pad_token": SPECIALS[0],
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def write_models(folder: Path, layers: int = LAYERS) -> None:
    """Writes all models. Needs torch, safetensors and tokenizers.

    Args:
        layers: of the target; each makes its step some 0.7 ms longer on one CPU core.
    """
    from safetensors.torch import save_file  # type: ignore[import-not-found, unused-ignore]  # as tokenizers

    weights = _Weights()
    target = _target(weights, layers)
    models = {
        "target": target,
        "eagle3": _eagle3(weights, layers),
        "eagle": _eagle(weights, target[1]),
        "draft": _draft(weights),
        "mtp": (_mtp(), None),
    }
    for name, (configuration, tensors) in models.items():
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps(configuration, indent=1))
        (place / "generation_config.json").write_text(json.dumps({"eos_token_id": TOKENS}))
        _write_tokenizer(place)
        if tensors is not None:
            kept = {key: tensor.to(weights.torch.bfloat16).contiguous() for key, tensor in tensors.items()}
            save_file(kept, str(place / "model.safetensors"), metadata={"format": "pt"})


if __name__ == "__main__":
    write_models(Path(sys.argv[1]), *map(int, sys.argv[2:3]))
