"""Lists the golden models: configuration, class, largest error of compiled logits (NMSE), and
changes to the converted tensors.

Sizes are small, different from each other, and in the ratios of real models: several value heads for a key head, fewer
key heads than query heads, partly rotated heads. Every kind of layer occurs, and not only at the end.
"""

import functools
import json
import re
import unittest.mock
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Callable

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (
    Dots1Config,
    Dots1ForCausalLM,
    Ernie4_5Config,
    Ernie4_5ForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GraniteConfig,
    GraniteForCausalLM,
    HunYuanMoEV1Config,
    HunYuanMoEV1ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Qwen3VLMoeConfig,
    Qwen3VLMoeForConditionalGeneration,
    SeedOssConfig,
    SeedOssForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM
from transformers import Lfm2Config, Lfm2ForCausalLM, Lfm2MoeConfig, Lfm2MoeForCausalLM
from transformers import NemotronHConfig, NemotronHForCausalLM
from transformers import AfmoeConfig, AfmoeForCausalLM, ArceeConfig, ArceeForCausalLM
from transformers import Cohere2Config, Cohere2ForCausalLM, Cohere2MoeConfig, Cohere2MoeForCausalLM, CohereConfig, CohereForCausalLM
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM
from transformers import Exaone4Config, Exaone4ForCausalLM, ExaoneMoeConfig, ExaoneMoeForCausalLM
from transformers import Gemma2Config, Gemma2ForCausalLM, GemmaConfig, GemmaForCausalLM
from transformers import Glm4Config, Glm4ForCausalLM, GlmConfig, GlmForCausalLM, GptOssConfig, GptOssForCausalLM
from transformers import HunYuanDenseV1Config, HunYuanDenseV1ForCausalLM, HYV3Config, HYV3ForCausalLM, HYV4Config, HYV4ForCausalLM
from transformers import LagunaConfig, LagunaForCausalLM, Llama4ForCausalLM, Llama4TextConfig, LlamaConfig, LlamaForCausalLM
from transformers import Ministral3Config, Ministral3ForCausalLM, Mistral4Config, Mistral4ForCausalLM
from transformers import NemotronConfig, NemotronForCausalLM, Olmo2Config, Olmo2ForCausalLM, Olmo3Config, Olmo3ForCausalLM
from transformers import ApertusConfig, ApertusForCausalLM, Gemma3nForCausalLM, Gemma3nTextConfig
from transformers import GraniteMoeSWAConfig, GraniteMoeSWAForCausalLM, GraniteSWAConfig, GraniteSWAForCausalLM, MellumConfig, MellumForCausalLM
from transformers import FalconMambaConfig, FalconMambaForCausalLM, JambaConfig, JambaForCausalLM, MambaConfig, MambaForCausalLM
from transformers import MiniCPM3Config, MiniCPM3ForCausalLM, MiniMaxConfig, MiniMaxForCausalLM
from transformers import PhiConfig, PhiForCausalLM, PhimoeConfig, PhimoeForCausalLM
from transformers import StableLmConfig, StableLmForCausalLM, Starcoder2Config, Starcoder2ForCausalLM
from transformers import Jais2Config, Jais2ForCausalLM, MuseGlimmerConfig, MuseGlimmerForConditionalGeneration
from transformers import AXK1Config, AXK1ForCausalLM, CwmConfig, CwmForCausalLM, FlintConfig, FlintForCausalLM
from transformers import HyperCLOVAXConfig, HyperCLOVAXForCausalLM, Lfm3Config, Lfm3ForCausalLM
from transformers import BambaConfig, BambaForCausalLM, LongcatFlashConfig, LongcatFlashForCausalLM, NanoChatConfig, NanoChatForCausalLM
from transformers import OlmoHybridConfig, OlmoHybridForCausalLM, VaultGemmaConfig, VaultGemmaForCausalLM
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers import GPT2Config, GPT2LMHeadModel, GPTBigCodeConfig, GPTBigCodeForCausalLM
from transformers import BitNetConfig, BitNetForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers import BloomConfig, BloomForCausalLM, MptConfig, MptForCausalLM
from transformers.models.mpt.modeling_mpt import MptAttention
from transformers.models.nemotron.modeling_nemotron import NemotronMLP
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers import DbrxConfig, DbrxForCausalLM, FalconConfig, FalconForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM, OlmoConfig, OlmoForCausalLM
from transformers import GPTJConfig, GPTJForCausalLM, GPTNeoConfig, GPTNeoForCausalLM, OPTConfig, OPTForCausalLM
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration
from transformers import HrmTextConfig, HrmTextForCausalLM, HunYuanVLConfig, HunYuanVLForConditionalGeneration
from transformers import PaddleOCRVLConfig, PaddleOCRVLForConditionalGeneration, Qwen3Config, Qwen3ForCausalLM
from transformers.models.chameleon.modeling_chameleon import ChameleonAttention, ChameleonConfig
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer

from transformers import DeepseekV32Config, DeepseekV32ForCausalLM, GlmMoeDsaConfig, GlmMoeDsaForCausalLM
from transformers import MiniMaxM3VLForCausalLM, MiniMaxM3VLTextConfig
from transformers import MiMoV2FlashConfig, MiMoV2FlashForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bailing_hybrid.modeling_bailing_hybrid import BailingHybridConfig, BailingHybridForCausalLM
from transformers.models.dots3_note.modeling_dots3_note import Dots3NoteForCausalLM, Dots3NoteTextConfig
from transformers.models.glm5_next.modeling_glm5_next import Glm5NextTextConfig, Glm5NextTextModel
from transformers.models.mistral_large4.modeling_mistral_large4 import MistralLarge4TextConfig, MistralLarge4TextModel
from transformers.models.step3p7.modeling_step3p7 import Step3p7TextConfig, Step3p7TextModel
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpForCausalLM, Qwen4ExpTextConfig
from transformers import FalconH1Config, FalconH1ForCausalLM, KimiLinearConfig, KimiLinearForCausalLM, Mamba2Config, Mamba2ForCausalLM
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3NextConfig, Qwen3NextForCausalLM

@dataclass
class ByHand:
    """A file that this program writes, because llama.cpp's converter cannot convert the folder that
    transformers writes.

        keys          keys after the architecture's name
        tensors       tensors of the file
        single        parts of names of matrices that files have in f32
        architecture  the architecture, if the name of the model does not begin with it
    """

    keys: Callable
    tensors: Callable
    single: list = field(default_factory=list)
    architecture: str = ""


def deepseek4_keys(config):
    layers = config.num_hidden_layers
    rates = {"sliding_attention": 0}
    rates |= config.compress_rates
    rope = config.rope_parameters["compress"]
    return {
        "block_count": layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": 1,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.sliding_window": config.sliding_window,
        "attention.output_group_count": config.o_groups,
        "attention.output_lora_rank": config.o_lora_rank,
        "attention.compress_ratios": [rates[layer] for layer in config.layer_types],
        "attention.compress_rope_freq_base": float(config.compress_rope_theta),
        "attention.indexer.head_count": config.index_n_heads,
        "attention.indexer.key_length": config.index_head_dim,
        "attention.indexer.top_k": config.index_topk,
        "rope.dimension_count": config.qk_rope_head_dim,
        "rope.freq_base": float(config.rope_theta),
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": rope["factor"],
        "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        "rope.scaling.yarn_beta_fast": rope["beta_fast"],
        "rope.scaling.yarn_beta_slow": rope["beta_slow"],
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_weights_norm": config.norm_topk_prob,
        "expert_gating_func": 4,
        "swiglu_clamp_exp": [config.swiglu_limit] * layers,
        "swiglu_clamp_shexp": [config.swiglu_limit] * layers,
        "hyper_connection.count": config.hc_mult,
        "hyper_connection.sinkhorn_iterations": config.hc_sinkhorn_iters,
        "hyper_connection.epsilon": config.hc_eps,
        "hash_layer_count": config.mlp_layer_types.count("hash_moe"),
    }


DEEPSEEK4 = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_norm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_proj.weight": "attn_kv.weight",
    "self_attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "self_attn.o_a_proj.weight": "attn_output_a.weight",
    "self_attn.o_b_proj.weight": "attn_output_b.weight",
    "self_attn.compressor.position_bias": "attn_compressor_ape.weight",
    "self_attn.compressor.kv_proj.weight": "attn_compressor_kv.weight",
    "self_attn.compressor.gate_proj.weight": "attn_compressor_gate.weight",
    "self_attn.compressor.kv_norm.weight": "attn_compressor_norm.weight",
    "self_attn.compressor.indexer.position_bias": "indexer_compressor_ape.weight",
    "self_attn.compressor.indexer.kv_proj.weight": "indexer_compressor_kv.weight",
    "self_attn.compressor.indexer.gate_proj.weight": "indexer_compressor_gate.weight",
    "self_attn.compressor.indexer.kv_norm.weight": "indexer_compressor_norm.weight",
    "self_attn.compressor.indexer.q_b_proj.weight": "indexer.attn_q_b.weight",
    "self_attn.compressor.indexer.scorer.weights_proj.weight": "indexer.proj.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.gate.tid2eid": "ffn_gate_tid2eid.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
    **{f"{part}_hc.{name}": f"hc_{part}_{name}.weight" for part in ("attn", "ffn") for name in ("fn", "base", "scale")},
}
DEEPSEEK4_ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    **{f"model.hc_head.hc_{name}": f"output_hc_{name}.weight" for name in ("fn", "base", "scale")},
}


def deepseek4_tensors(parameters, _config):
    """Returns tensors under the names of DeepSeek-V4's files. Its converter takes only experts in four bits."""
    tensors = {}
    for name, data in parameters.items():
        if name in DEEPSEEK4_ENDS:
            tensors[DEEPSEEK4_ENDS[name]] = data
            continue
        layer, part = name.removeprefix("model.layers.").split(".", 1)
        if part == "mlp.experts.gate_up_proj":
            gate, up = np.split(data, 2, axis=1)
            tensors[f"blk.{layer}.ffn_gate_exps.weight"], tensors[f"blk.{layer}.ffn_up_exps.weight"] = gate, up
        else:
            tensors[f"blk.{layer}.{DEEPSEEK4[part]}"] = data
    return tensors


class TextModel(torch.nn.Module):
    """Text part of a model that transformers has only for text and images: its layers and a head."""

    layers = None

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = self.layers(config)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def set_experts_implementation(self, name):
        self.model.set_experts_implementation(name)

    def save_pretrained(self, folder):
        """Writes parameters under their names in this program. `tests/checkpoints/make/hub.py` has those of the hub."""
        self.config.save_pretrained(folder)
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, Path(folder) / "model.safetensors", {"format": "pt"})

    def forward(self, input_ids):
        hidden = self.model(input_ids=input_ids, use_cache=False).last_hidden_state
        return SimpleNamespace(logits=self.lm_head(hidden))


class Step35ForCausalLM(TextModel):
    layers = Step3p7TextModel


class MistralLarge4ForCausalLM(TextModel):
    """Mistral Large 4 with the cap on logits, which transformers has only in the model for images."""

    layers = MistralLarge4TextModel

    def __init__(self, config):
        config._attn_implementation = "eager"
        super().__init__(config)

    def forward(self, input_ids):
        cap = self.config.final_logit_softcapping
        return SimpleNamespace(logits=torch.tanh(super().forward(input_ids).logits / cap) * cap)


class Glm5NextForCausalLM(TextModel):
    layers = Glm5NextTextModel


def rotated(x, base, neox):
    """Rotates heads `[T, heads, d]` by their positions, as pairs of neighbours or of halves."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[0], dtype=x.dtype)[:, None] * base ** -(torch.arange(half, dtype=x.dtype) / half)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    a, b = (x[..., :half], x[..., half:]) if neox else (x[..., ::2], x[..., 1::2])
    parts = [a * cos - b * sin, a * sin + b * cos]
    return torch.cat(parts, -1) if neox else torch.stack(parts, -1).flatten(-2)


class Norm(torch.nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.eps, self.weight = eps, torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.weight


class Attention(torch.nn.Module):
    """Grouped-query attention with or without RoPE, over all positions or a window."""

    def __init__(self, config, layer):
        super().__init__()
        self.config = config
        self.window = config.windows[layer]
        self.turns = self.window or not any(config.windows)
        width, length = config.hidden_size, config.head_dim
        heads = [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]
        for name, count in zip("qkv", heads):
            setattr(self, f"{name}_proj", torch.nn.Linear(width, count * length, bias=False))
        self.o_proj = torch.nn.Linear(heads[0] * length, width, bias=False)

    def forward(self, x):
        config, count = self.config, x.shape[0]
        q, k, v = (getattr(self, f"{name}_proj")(x).view(count, -1, config.head_dim) for name in "qkv")
        if self.turns:
            q, k = (rotated(part, config.rope_theta, config.neox) for part in (q, k))
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
        scores = torch.einsum("thd,shd->hts", q, k) / config.head_dim**0.5
        back = torch.arange(count)[:, None] - torch.arange(count)
        seen = (back >= 0) & (back < (self.window or count))
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return self.o_proj(torch.einsum("hts,shd->thd", weights, v).flatten(1))


class Experts(torch.nn.Module):
    """Routed experts of rows. The caller gives the router's logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        count, width, inner = config.num_local_experts, config.hidden_size, config.moe_intermediate_size
        self.gate_up_proj = torch.nn.Parameter(torch.empty(count, 2 * inner, width))
        self.down_proj = torch.nn.Parameter(torch.empty(count, width, inner))

    def forward(self, x, logits):
        scores = logits.sigmoid() if self.config.sigmoid else logits.softmax(-1)
        weights, chosen = scores.topk(self.config.num_experts_per_tok, -1)
        return self.weighed(x, chosen, weights / weights.sum(-1, keepdim=True))

    def weighed(self, x, chosen, weights):
        gate, up = torch.einsum("td,tend->ten", x, self.gate_up_proj[chosen]).chunk(2, -1)
        rows = torch.einsum("ten,tedn->ted", self.config.activation(gate) * up, self.down_proj[chosen])
        return (weights[..., None] * rows).sum(1)


class SparseLayer(torch.nn.Module):
    """A layer of SmallThinker or Arctic.

    SmallThinker's router takes the stream before attention. Arctic's experts do so after a norm of their own, in
    parallel with a dense network.
    """

    def __init__(self, config, layer):
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.input_layernorm, self.post_attention_layernorm = Norm(width, config.rms_norm_eps), Norm(width, config.rms_norm_eps)
        self.self_attn = Attention(config, layer)
        self.mlp = torch.nn.Module()
        self.mlp.gate = torch.nn.Linear(width, config.num_local_experts, bias=False)
        self.mlp.experts = Experts(config)
        if config.beside:
            self.experts_layernorm = Norm(width, config.rms_norm_eps)
            for part in ("gate", "up", "down"):
                setattr(self.mlp, f"{part}_proj", torch.nn.Linear(width, width, bias=False))

    def forward(self, x):
        before = self.experts_layernorm(x) if self.config.beside else x
        logits = self.mlp.gate(before)
        x = x + self.self_attn(self.input_layernorm(x))
        h = self.post_attention_layernorm(x)
        if not self.config.beside:
            return x + self.mlp.experts(h, logits)
        dense = self.mlp.down_proj(self.config.activation(self.mlp.gate_proj(h)) * self.mlp.up_proj(h))
        return x + dense + self.mlp.experts(before, logits)


class SparseForCausalLM(torch.nn.Module):
    """A model without a class in transformers, computed by its formula."""

    layer = SparseLayer

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = torch.nn.ModuleList(self.layer(config, layer) for layer in range(config.num_hidden_layers))
        self.model.norm = Norm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def save_pretrained(self, folder):
        """Writes configuration and parameters. `tests/checkpoints/make/hub.py` has the names of the hub."""
        numbers = {key: value for key, value in vars(self.config).items() if not callable(value)}
        (Path(folder)).mkdir(exist_ok=True)
        (Path(folder) / "config.json").write_text(json.dumps(numbers))
        save_file({name: tensor.contiguous() for name, tensor in self.state_dict().items()}, Path(folder) / "model.safetensors", {"format": "pt"})

    def forward(self, input_ids):
        x = self.model.embed_tokens(input_ids[0])
        for layer in self.model.layers:
            x = layer(x)
        return SimpleNamespace(logits=self.lm_head(self.model.norm(x))[None])


def capped(x, cap):
    return cap * (x / cap).tanh() if cap else x


class GrokAttention(Attention):
    """Attention with a soft cap on scores and its own factor."""

    def forward(self, x):
        config, count = self.config, x.shape[0]
        q, k, v = (getattr(self, f"{name}_proj")(x).view(count, -1, config.head_dim) for name in "qkv")
        q, k = (rotated(part, config.rope_theta, True) for part in (q, k))
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
        scores = capped(torch.einsum("thd,shd->hts", q, k) * config.attention_scale, config.attention_cap)
        later = torch.arange(count)[:, None] < torch.arange(count)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return self.o_proj(torch.einsum("hts,shd->thd", weights, v).flatten(1))


class GrokExperts(Experts):
    """Experts weighted by a softmax over all experts, of logits with a soft cap."""

    def forward(self, x, logits):
        weights, chosen = capped(logits, self.config.router_cap).softmax(-1).topk(self.config.num_experts_per_tok, -1)
        return self.weighed(x, chosen, weights)


class GrokLayer(torch.nn.Module):
    """A layer of Grok: each block has a norm before and after it.

    Grok 2 adds a dense network in parallel with the experts.
    """

    def __init__(self, config, layer):
        super().__init__()
        self.config = config
        width = config.hidden_size
        for name in ("input", "post_attention", "pre_moe", "post_moe"):
            setattr(self, f"{name}_layernorm", Norm(width, config.rms_norm_eps))
        self.self_attn = GrokAttention(config, layer)
        self.mlp = torch.nn.Module()
        self.mlp.gate = torch.nn.Linear(width, config.num_local_experts, bias=False)
        self.mlp.experts = GrokExperts(config)
        if config.beside:
            for part, (to, of) in {"gate": (config.intermediate_size, width), "up": (config.intermediate_size, width), "down": (width, config.intermediate_size)}.items():
                setattr(self.mlp, f"{part}_proj", torch.nn.Linear(of, to, bias=False))

    def forward(self, x):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x)))
        h = self.pre_moe_layernorm(x)
        y = self.mlp.experts(h, self.mlp.gate(h))
        if self.config.beside:
            y = (self.mlp.down_proj(self.config.activation(self.mlp.gate_proj(h)) * self.mlp.up_proj(h)) + y) / 2**0.5
        return x + self.post_moe_layernorm(y)


class GrokForCausalLM(SparseForCausalLM):
    layer = GrokLayer

    def forward(self, input_ids):
        x = self.model.embed_tokens(input_ids[0]) * self.config.embedding_scale
        for layer in self.model.layers:
            x = layer(x)
        return SimpleNamespace(logits=capped(self.lm_head(self.model.norm(x)) * self.config.logit_scale, self.config.logit_cap)[None])


class Beside(LlamaDecoderLayer):
    """A layer whose network takes the input of attention (parallel residual)."""

    def forward(self, x, **rest):
        h = self.input_layernorm(x)
        return x + self.self_attn(hidden_states=h, **rest)[0] + self.mlp(h)


class PlamoForCausalLM(LlamaForCausalLM):
    """PLaMo 1, which transformers does not have."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.__class__, layer.post_attention_layernorm = Beside, torch.nn.Identity()


class HeadsNormed(Attention):
    """Attention with norms of heads, and another base of RoPE in layers without a window."""

    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.q_norm, self.k_norm = (Norm(config.head_dim, config.rms_norm_eps) for _ in range(2))

    def forward(self, x):
        config, count = self.config, x.shape[0]
        q, k, v = (getattr(self, f"{name}_proj")(x).view(count, -1, config.head_dim) for name in "qkv")
        base = config.local_theta if self.window else config.rope_theta
        q, k = (rotated(norm(part), base, config.neox) for norm, part in ((self.q_norm, q), (self.k_norm, k)))
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
        back = torch.arange(count)[:, None] - torch.arange(count)
        scores = torch.einsum("thd,shd->hts", q, k) / config.head_dim**0.5
        weights = scores.masked_fill((back < 0) | (back >= (self.window or count)), float("-inf")).softmax(-1)
        return self.o_proj(torch.einsum("hts,shd->thd", weights, v).flatten(1))


class Plamo3Layer(torch.nn.Module):
    """A layer of PLaMo 3: each block has a norm before and after it."""

    def __init__(self, config, layer):
        super().__init__()
        for name in ("input", "post_attention", "pre_mlp", "post_mlp"):
            setattr(self, f"{name}_layernorm", Norm(config.hidden_size, config.rms_norm_eps))
        self.self_attn = HeadsNormed(config, layer)
        self.mlp = torch.nn.Module()
        self.mlp.gate_up_proj = torch.nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.mlp.down_proj = torch.nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x)))
        gate, up = self.mlp.gate_up_proj(self.pre_mlp_layernorm(x)).chunk(2, -1)
        return x + self.post_mlp_layernorm(self.mlp.down_proj(torch.nn.functional.silu(gate) * up))


class Plamo3ForCausalLM(SparseForCausalLM):
    layer = Plamo3Layer


class HeadStates(torch.nn.Module):
    """The selective state space of PLaMo 2.

    There is one decay per head. Gates and values of each head are neighbours. Keys, queries and steps are normalised.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        heads, width, state, rank = config.state_heads, config.state_heads * config.head_dim, config.state, config.step_rank
        linear = functools.partial(torch.nn.Linear, bias=False)
        self.in_proj, self.bcdt_proj = linear(config.hidden_size, 2 * width), linear(width, 2 * state + rank)
        self.dt_proj, self.out_proj = linear(rank, heads), linear(width, config.hidden_size)
        self.conv1d = torch.nn.Conv1d(width, width, config.taps, groups=width, bias=False)
        self.B_norm, self.C_norm, self.dt_norm = (Norm(length, config.rms_norm_eps) for length in (state, state, rank))
        self.A_log, self.D, self.dt_bias = (torch.nn.Parameter(torch.ones(heads)) for _ in range(3))

    def forward(self, x):
        config, functional = self.config, torch.nn.functional
        z, x = self.in_proj(x).unflatten(1, (config.state_heads, 2, -1)).unbind(2)
        x = functional.silu(self.conv1d(functional.pad(x.flatten(1).T[None], (config.taps - 1, 0))))[0].T
        b, c, step = self.bcdt_proj(x).split([config.state, config.state, config.step_rank], -1)
        b, c, step = self.B_norm(b), self.C_norm(c), functional.softplus(self.dt_proj(self.dt_norm(step)) + self.dt_bias)
        x, decay = x.unflatten(1, (config.state_heads, -1)), (-step * self.A_log.exp()).exp()
        state, rows = torch.zeros(*x.shape[1:], config.state, dtype=x.dtype), []
        for t in range(len(x)):
            state = state * decay[t, :, None, None] + (step[t, :, None] * x[t])[..., None] * b[t]
            rows.append(state @ c[t])
        y = torch.stack(rows) + self.D[:, None] * x
        return self.out_proj((functional.silu(z) * y).flatten(1))


class Plamo2Layer(Plamo3Layer):
    """A layer of PLaMo 2: every second one is attention, with norms of each head."""

    def __init__(self, config, layer):
        super().__init__(config, layer)
        if layer % 2:
            attention = self.self_attn
            attention.q_norm, attention.k_norm = (
                Norm((heads, config.head_dim), config.rms_norm_eps) for heads in (config.num_attention_heads, config.num_key_value_heads)
            )
        else:
            self.self_attn = HeadStates(config)


class Plamo2ForCausalLM(SparseForCausalLM):
    layer = Plamo2Layer


class LowRank(torch.nn.Module):
    """A low-rank projection, with the parameter names of flash-linear-attention."""

    def __init__(self, width, rank, between, bias=True):
        super().__init__()
        first, second = torch.nn.Linear(width, rank, bias=False), torch.nn.Linear(rank, width, bias=bias)
        self.lora = torch.nn.Sequential(first, between(), second)

    def forward(self, x):
        return self.lora(x)


def shifted(x):
    """Returns the difference between the previous row and each row (token shift)."""
    return torch.cat([torch.zeros_like(x[:1]), x[:-1]]) - x


class GooseMix(torch.nn.Module):
    """Time mixing of RWKV-7, by its formula (arXiv 2503.14456), with the parameter names of flash-linear-attention."""

    def __init__(self, config, layer):
        super().__init__()
        self.config = config
        width, heads = config.hidden_size, config.hidden_size // config.head_dim
        gated = config.wkv_has_gate
        for letter in "rwkvag" if gated else "rwkva":
            self.register_parameter(f"x_{letter}", torch.nn.Parameter(torch.empty(1, 1, width)))
        for name in ["k_k", "k_a"]:
            self.register_parameter(name, torch.nn.Parameter(torch.ones(width)))
        self.r_k = torch.nn.Parameter(torch.empty(heads, config.head_dim))
        for letter in "rkvo":
            setattr(self, f"{letter}_proj", torch.nn.Linear(width, width, bias=False))
        self.w_lora = LowRank(width, config.decay_low_rank_dim, torch.nn.Tanh)
        self.a_lora = LowRank(width, config.a_low_rank_dim, torch.nn.Identity)
        if layer:
            self.v_lora = LowRank(width, config.v_low_rank_dim, torch.nn.Identity)
        if gated:
            self.g_lora = LowRank(width, config.gate_low_rank_dim, torch.nn.Sigmoid, bias=False)
        if config.head_norm:
            self.g_norm = torch.nn.GroupNorm(heads, width, eps=64e-5)

    def forward(self, h, first):
        size = (h.shape[0], h.shape[1] // self.config.head_dim, self.config.head_dim)
        before = shifted(h)
        xr, xw, xk, xv, xa, *xg = (h + before * getattr(self, f"x_{letter}")[0] for letter in ("rwkvag" if self.config.wkv_has_gate else "rwkva"))
        r, k, v = self.r_proj(xr), self.k_proj(xk), self.v_proj(xv)
        decay = torch.exp(-0.606531 * self.w_lora(xw).sigmoid())
        rate = self.a_lora(xa).sigmoid()
        if first is None:
            first = v
        else:
            v = v + (first - v) * self.v_lora(xv).sigmoid()
        find = torch.nn.functional.normalize((k * self.k_k).view(size), dim=-1, eps=1e-12)
        k = k * (1 + (rate - 1) * self.k_a)
        remove = find * rate.view(size)
        state, rows = torch.zeros(*size[1:], size[2], dtype=h.dtype), []
        for t in range(size[0]):
            r_t, k_t, v_t, decay_t = (x.view(size)[t] for x in (r, k, v, decay))
            # Rows are values, columns are keys.
            found = torch.einsum("hvk,hk->hv", state, find[t])
            state = state * decay_t[:, None] - found[..., None] * remove[t][:, None] + v_t[..., None] * k_t[:, None]
            rows.append(torch.einsum("hvk,hk->hv", state, r_t))
        y = torch.stack(rows).flatten(1)
        if self.config.head_norm:
            y = self.g_norm(y)
        bonus = (r.view(size) * k.view(size) * self.r_k).sum(-1, keepdim=True) * v.view(size)
        y = y + bonus.flatten(1)
        if xg:
            y = y * self.g_lora(xg[0])
        return self.o_proj(y), first


class SquaredNetwork(torch.nn.Module):
    """Channel mixing of RWKV-7."""

    def __init__(self, config):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.x_k = torch.nn.Parameter(torch.ones(width) / 2)
        self.key, self.value = torch.nn.Linear(width, inner, bias=False), torch.nn.Linear(inner, width, bias=False)

    def forward(self, h):
        return self.value(torch.relu(self.key(h + shifted(h) * self.x_k)) ** 2)


class GooseLayer(torch.nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        width = config.hidden_size
        if not layer:
            self.pre_norm = torch.nn.LayerNorm(width, eps=config.norm_eps)
        self.attn_norm, self.ffn_norm = (torch.nn.LayerNorm(width, eps=config.norm_eps) for _ in range(2))
        self.attn, self.ffn = GooseMix(config, layer), SquaredNetwork(config)

    def forward(self, x, first):
        if first is None:
            x = self.pre_norm(x)
        y, first = self.attn(self.attn_norm(x), first)
        x = x + y
        return x + self.ffn(self.ffn_norm(x)), first


class Rwkv7ForCausalLM(torch.nn.Module):
    """RWKV-7, which transformers does not have, by its formula. Parameters have the names of `fla-hub`."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = torch.nn.Module()
        self.model.embeddings = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = torch.nn.ModuleList(GooseLayer(config, layer) for layer in range(config.num_hidden_layers))
        self.model.norm = torch.nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
        self.lm_head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    save_pretrained = SparseForCausalLM.save_pretrained

    def forward(self, input_ids):
        x, first = self.model.embeddings(input_ids[0]), None
        for layer in self.model.layers:
            x, first = layer(x, first)
        return SimpleNamespace(logits=self.lm_head(self.model.norm(x))[None])


class HybridLayer(torch.nn.Module):
    """A layer of ARWKV-7: time mixing of RWKV-7, the rest of Qwen2."""

    def __init__(self, config, layer):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (Norm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        self.self_attn = torch.nn.Module()
        self.self_attn.time_mixer = GooseMix(config, layer)
        self.mlp = Gated(config)

    def forward(self, x, first):
        y, first = self.self_attn.time_mixer(self.input_layernorm(x), first)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), first


class Gated(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = (torch.nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj = torch.nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class RwkvHybridForCausalLM(SparseForCausalLM):
    """ARWKV-7, by its formula."""

    layer = HybridLayer

    def forward(self, input_ids):
        x, first = self.model.embed_tokens(input_ids[0]), None
        for layer in self.model.layers:
            x, first = layer(x, first)
        return SimpleNamespace(logits=self.lm_head(self.model.norm(x))[None])


class FinchMix(torch.nn.Module):
    """Time mixing of RWKV-6, by its formula (arXiv 2404.05892).

    With `kv_heads` it replaces Qwen2's attention (QRWKV6).
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        width, length = config.hidden_size, config.head_size
        heads = width // length
        self.time_maa_x = torch.nn.Parameter(torch.empty(1, 1, width))
        for letter in "wkvrg":
            self.register_parameter(f"time_maa_{letter}", torch.nn.Parameter(torch.empty(1, 1, width)))
        self.time_maa_w1 = torch.nn.Parameter(torch.empty(width, 5 * config.mix_rank))
        self.time_maa_w2 = torch.nn.Parameter(torch.empty(5, config.mix_rank, width))
        self.time_decay = torch.nn.Parameter(torch.empty(1, 1, width))
        self.time_decay_w1 = torch.nn.Parameter(torch.empty(width, config.decay_rank))
        self.time_decay_w2 = torch.nn.Parameter(torch.empty(config.decay_rank, width))
        qwen = config.kv_heads > 0
        inner = (config.kv_heads or heads) * length
        q, k, v, o = ("q_proj", "k_proj", "v_proj", "o_proj") if qwen else ("receptance", "key", "value", "output")
        self.parts = (q, k, v, o)
        setattr(self, q, torch.nn.Linear(width, width, bias=qwen))
        setattr(self, k, torch.nn.Linear(width, inner, bias=qwen))
        setattr(self, v, torch.nn.Linear(width, inner, bias=qwen))
        setattr(self, o, torch.nn.Linear(width, width, bias=False))
        self.gate = torch.nn.Linear(width, width, bias=False)
        if not qwen:
            self.time_faaaa = torch.nn.Parameter(torch.empty(heads, length))
            self.ln_x = torch.nn.GroupNorm(heads, width, eps=64e-5)

    def forward(self, h):
        functional = torch.nn.functional
        length = self.config.head_size
        size = (h.shape[0], h.shape[1] // length, length)
        before = shifted(h)
        shares = torch.tanh((h + before * self.time_maa_x[0]) @ self.time_maa_w1).view(len(h), 5, -1)
        shares = torch.einsum("tir,irn->itn", shares, self.time_maa_w2)
        # QRWKV6 has another order of these parts.
        letters = "rkvwg" if self.config.kv_heads else "wkvrg"
        mixed = {letter: h + before * (getattr(self, f"time_maa_{letter}")[0] + share) for letter, share in zip(letters, shares)}
        q, k, v, o = (getattr(self, part) for part in self.parts)
        q, k, v, gate = q(mixed["r"]).view(size), k(mixed["k"]), v(mixed["v"]), self.gate(mixed["g"])
        k, v = (x.view(len(h), -1, length).repeat_interleave(size[1] * length // x.shape[1], 1) for x in (k, v))
        decay = torch.exp(-torch.exp(self.time_decay[0] + torch.tanh(mixed["w"] @ self.time_decay_w1) @ self.time_decay_w2)).view(size)
        state, rows = torch.zeros(*size[1:], length, dtype=h.dtype), []
        for t in range(size[0]):
            if self.config.kv_heads:
                state = state * decay[t][..., None] + (k[t] * (1 - decay[t]))[..., None] * v[t][:, None]
                rows.append(torch.einsum("hkv,hk->hv", state, q[t]) / length**0.5)
            else:
                new = k[t][..., None] * v[t][:, None]
                rows.append(torch.einsum("hkv,hk->hv", state + self.time_faaaa[..., None] * new, q[t]))
                state = state * decay[t][..., None] + new
        y = torch.stack(rows).flatten(1)
        y = y * gate.sigmoid() if self.config.kv_heads else self.ln_x(y) * functional.silu(gate)
        return o(y)


class FinchNetwork(torch.nn.Module):
    """Channel mixing of RWKV-6."""

    def __init__(self, config):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.time_maa_k, self.time_maa_r = (torch.nn.Parameter(torch.empty(1, 1, width)) for _ in range(2))
        self.key, self.value = torch.nn.Linear(width, inner, bias=False), torch.nn.Linear(inner, width, bias=False)
        self.receptance = torch.nn.Linear(width, width, bias=False)

    def forward(self, h):
        before = shifted(h)
        r = self.receptance(h + before * self.time_maa_r[0]).sigmoid()
        return r * self.value(torch.relu(self.key(h + before * self.time_maa_k[0])) ** 2)


class FinchBlock(torch.nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        width = config.hidden_size
        if not layer:
            self.pre_ln = torch.nn.LayerNorm(width, eps=config.layer_norm_epsilon)
        self.ln1, self.ln2 = (torch.nn.LayerNorm(width, eps=config.layer_norm_epsilon) for _ in range(2))
        self.attention, self.feed_forward = FinchMix(config), FinchNetwork(config)

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.feed_forward(self.ln2(x))


class Rwkv6ForCausalLM(torch.nn.Module):
    """RWKV-6, which transformers does not have, by its formula. Parameters have the names of `RWKV/v6-Finch`.

    Files have output matrices that are halved once for every `rescale_every` earlier layers, and the original code
    halves the stream as often. Apart from the epsilon of norms, this changes no result. So this class computes with
    the matrices of the files.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.rwkv = torch.nn.Module()
        self.rwkv.embeddings = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.rwkv.blocks = torch.nn.ModuleList(FinchBlock(config, layer) for layer in range(config.num_hidden_layers))
        self.rwkv.ln_out = torch.nn.LayerNorm(config.hidden_size, eps=config.layer_norm_epsilon)
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    save_pretrained = SparseForCausalLM.save_pretrained

    def forward(self, input_ids):
        x = self.rwkv.blocks[0].pre_ln(self.rwkv.embeddings(input_ids[0]))
        for layer, block in enumerate(self.rwkv.blocks):
            scale = 2.0 ** (layer // self.config.rescale_every)
            y = block.attention(block.ln1(x))
            x = x + y / scale
            x = x + block.feed_forward(block.ln2(x)) / scale
            if (layer + 1) % self.config.rescale_every == 0:
                x = x / 2
        return SimpleNamespace(logits=self.head(self.rwkv.ln_out(x))[None])


class QrwkvLayer(torch.nn.Module):
    """A layer of QRWKV6: time mixing of RWKV-6, the rest of Qwen2."""

    def __init__(self, config, layer):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (Norm(config.hidden_size, config.rms_norm_eps) for _ in range(2))
        self.self_attn, self.mlp = FinchMix(config), Gated(config)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class RWKV6Qwen2ForCausalLM(SparseForCausalLM):
    """QRWKV6, by its formula."""

    layer = QrwkvLayer


class NanbeigeForCausalLM(LlamaForCausalLM):
    """Llama whose layers run several times, with the last norm between the runs (Nanbeige 4.2,
    which transformers does not have).
    """

    def forward(self, input_ids):
        model = self.model
        x = model.embed_tokens(input_ids)
        turns = model.rotary_emb(x, torch.arange(input_ids.shape[1])[None])
        turns = tuple(part.to(x.dtype) for part in turns)
        later = torch.triu(torch.full((input_ids.shape[1],) * 2, float("-inf"), dtype=x.dtype), 1)[None, None]
        for round in range(self.config.num_loops):
            if round and not self.config.skip_loop_final_norm:
                x = model.norm(x)
            for layer in model.layers:
                x = layer(x, attention_mask=later, position_embeddings=turns)
        return SimpleNamespace(logits=self.lm_head(model.norm(x)))


class GroveExperts(torch.nn.Module):
    """Experts of GroveMoE.

    A group of experts shares a small expert, whose weight is that of the chosen expert of the
    group.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        count, width = config.num_experts, config.hidden_size
        self.gate = torch.nn.Linear(width, count, bias=False)
        for name, count, inner in [("experts", count, config.moe_intermediate_size), ("chunk_experts", count // 2, config.head_dim)]:
            experts = torch.nn.Module()
            experts.gate_up_proj = torch.nn.Parameter(torch.empty(count, 2 * inner, width))
            experts.down_proj = torch.nn.Parameter(torch.empty(count, width, inner))
            setattr(self, name, experts)

    def forward(self, x):
        logits = self.gate(x[0])
        chosen = logits.sigmoid().topk(self.config.num_experts_per_tok, -1).indices
        weights = logits.softmax(-1).gather(-1, chosen)
        weights = (weights / weights.sum(-1, keepdim=True))[..., None]
        sums = []
        for experts, ids in [(self.experts, chosen), (self.chunk_experts, chosen // 2)]:
            gate, up = torch.einsum("td,tend->ten", x[0], experts.gate_up_proj[ids]).chunk(2, -1)
            rows = torch.einsum("ten,tedn->ted", torch.nn.functional.silu(gate) * up, experts.down_proj[ids])
            sums.append((weights * rows).sum(1))
        return (sums[0] + 0.05 * sums[1])[None]


class GroveMoeForCausalLM(Qwen3MoeForCausalLM):
    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = GroveExperts(config)


class Formula(SimpleNamespace):
    """Configuration of a model without a class in transformers."""

    def get_text_config(self):
        return self


FORMULA = dict(
    model_type="formula",
    vocab_size=64,
    hidden_size=48,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=12,
    windows=[0] * 4,
    neox=False,
    rope_theta=10000.0,
    rms_norm_eps=1e-5,
    num_local_experts=6,
    num_experts_per_tok=3,
    moe_intermediate_size=16,
    sigmoid=False,
    activation=torch.nn.functional.silu,
    beside=False,
)


# RWKV-7, with the shapes of flash-linear-attention's configurations.
GOOSE = dict(
    model_type="rwkv7",
    architectures=["RWKV7ForCausalLM"],
    vocab_size=64,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=3,
    head_dim=16,
    norm_eps=1e-5,
    decay_low_rank_dim=8,
    a_low_rank_dim=12,
    v_low_rank_dim=4,
    gate_low_rank_dim=20,
    wkv_has_gate=True,
    head_norm=True,
)
# ARWKV-7, with the ranks that its converter knows.
HYBRID = GOOSE | dict(
    model_type="rwkv_hybrid",
    architectures=["RwkvHybridForCausalLM"],
    num_hidden_layers=2,
    head_size=16,
    rms_norm_eps=1e-5,
    wkv_version=7,
    decay_low_rank_dim=64,
    a_low_rank_dim=64,
    v_low_rank_dim=32,
    gate_low_rank_dim=128,
)
# RWKV-6, with the ranks that its converter knows.
FINCH = dict(
    model_type="rwkv6",
    architectures=["Rwkv6ForCausalLM"],
    vocab_size=64,
    hidden_size=48,
    intermediate_size=80,
    num_hidden_layers=2,
    head_size=16,
    layer_norm_epsilon=1e-5,
    mix_rank=32,
    decay_rank=64,
    kv_heads=0,
)


def formula_keys(config):
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": 512,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.moe_intermediate_size,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_theta,
        "rope.dimension_count": config.head_dim,
        "expert_count": config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_gating_func": 2 if config.sigmoid else 1,
    }
    if not config.beside:
        keys["expert_feed_forward_length"] = config.moe_intermediate_size
    if any(config.windows):
        keys["attention.sliding_window"] = max(config.windows)
    return keys


def grok_keys(config):
    keys = formula_keys(config) | {
        "attention.output_scale": config.attention_scale,
        "attn_logit_softcapping": config.attention_cap,
        "router_logit_softcapping": config.router_cap,
        "embedding_scale": config.embedding_scale,
        "logit_scale": config.logit_scale,
    }
    del keys["expert_gating_func"]
    if not config.beside:
        del keys["expert_feed_forward_length"]
        return keys
    # Grok 2's files have keys of scaled RoPE, but the model does not scale it.
    return keys | {
        "feed_forward_length": config.intermediate_size,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "final_logit_softcapping": config.logit_cap,
        "attention.temperature_length": 384,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 16.0,
        "rope.scaling.original_context_length": 32,
        "rope.scaling.yarn_ext_factor": 1.0,
        "rope.scaling.yarn_attn_factor": 1.0,
        "rope.scaling.yarn_beta_fast": 8.0,
        "rope.scaling.yarn_beta_slow": 1.0,
    }


def grok_tensors(parameters, config):
    names = [
        (r"post_attention_layernorm\b", "attn_output_norm"),
        (r"pre_moe_layernorm\b", "ffn_norm"),
        (r"post_moe_layernorm\b", "post_ffw_norm" if config.beside else "layer_output_norm"),
        *(row for row in NAMES if not row[0].startswith("post_attention")),
    ]
    return by_names(parameters, config, names, {})


def plamo3_keys(config):
    keys = formula_keys(config) | {"feed_forward_length": config.intermediate_size, "rope.freq_base_swa": config.local_theta}
    keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim, "attention.sliding_window_pattern": 3}
    return {key: value for key, value in keys.items() if not key.startswith("expert")}


def plamo3_tensors(parameters, config):
    names = [
        (r"post_attention_layernorm\.weight", "post_attention_norm"),
        (r"pre_mlp_layernorm\b", "ffn_norm"),
        (r"post_mlp_layernorm\.weight", "post_ffw_norm"),
        (r"mlp\.gate_up_proj\b", "ffn_up"),
        *(row for row in NAMES if not row[0].startswith("post_attention")),
    ]
    tensors = by_names(parameters, config, names, {})
    for layer in range(config.num_hidden_layers):
        tensors[f"blk.{layer}.attn_qkv.weight"] = np.concatenate([tensors.pop(f"blk.{layer}.attn_{part}.weight") for part in "qkv"])
    return tensors


def plamo2_keys(config):
    attends = [layer % 2 for layer in range(config.num_hidden_layers)]
    keys = formula_keys(config) | {"feed_forward_length": config.intermediate_size}
    keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    keys |= {"attention.head_count": [config.num_attention_heads * of for of in attends], "attention.head_count_kv": [config.num_key_value_heads * of for of in attends]}
    keys |= {"ssm.state_size": config.state, "ssm.conv_kernel": config.taps, "ssm.time_step_rank": config.state_heads, "ssm.group_count": 0}
    keys["ssm.inner_size"] = config.state_heads * config.head_dim
    return {key: value for key, value in keys.items() if not key.startswith("expert") and key != "rope.dimension_count"}


def plamo2_tensors(parameters, config):
    names = [
        (r"post_attention_layernorm\.weight", "post_attention_norm"),
        (r"pre_mlp_layernorm\b", "ffn_norm"),
        (r"post_mlp_layernorm\.weight", "post_ffw_norm"),
        (r"mlp\.gate_up_proj\b", "ffn_up"),
        (r"self_attn\.in_proj\b", "ssm_in"),
        (r"self_attn\.bcdt_proj\b", "ssm_x"),
        (r"self_attn\.dt_proj\b", "ssm_dt"),
        (r"self_attn\.out_proj\b", "ssm_out"),
        (r"self_attn\.conv1d\b", "ssm_conv1d"),
        (r"self_attn\.dt_bias", "ssm_dt.bias"),
        (r"self_attn\.D$", "ssm_d"),
        (r"self_attn\.A_log", "ssm_a"),
        (r"self_attn\.dt_norm\.weight", "ssm_dt_norm"),
        (r"self_attn\.B_norm\.weight", "ssm_b_norm"),
        (r"self_attn\.C_norm\.weight", "ssm_c_norm"),
        *(row for row in NAMES if not row[0].startswith("post_attention")),
    ]
    tensors = by_names(parameters, config, names, {})
    for name, data in tensors.items():
        if name.endswith("ssm_a"):
            tensors[name] = -np.exp(data)
        elif "conv1d" in name:
            tensors[name] = data[:, 0]
    for layer in range(1, config.num_hidden_layers, 2):
        tensors[f"blk.{layer}.attn_qkv.weight"] = np.concatenate([tensors.pop(f"blk.{layer}.attn_{part}.weight") for part in "qkv"])
    return tensors


def formula_tensors(parameters, config):
    return by_names(parameters, config, [*NAMES, (r"experts_layernorm\b", "ffn_norm_exps")], {})


# Patterns of parameter names after `model.layers.N.`, and the tensor names after `blk.N.`.
NAMES = [
    (r"input_layernorm\b", "attn_norm"),
    (r"post_attention_layernorm\b", "ffn_norm"),
    (r"self_attn\.([qk])_norm\b", r"attn_\1_norm"),
    (r"self_attn\.([qkv])_proj\b", r"attn_\1"),
    (r"self_attn\.o_proj\b", "attn_output"),
    (r"mlp\.(gate|up|down)_proj\b", r"ffn_\1"),
    (r"mlp\.gate\.weight", "ffn_gate_inp.weight"),
    (r"mlp\.gate\.e_score_correction_bias", "exp_probs_b.bias"),
    (r"mlp\.experts\.down_proj", "ffn_down_exps.weight"),
    (r"mlp\.shared_experts\.(gate|up|down)_proj\b", r"ffn_\1_shexp"),
]
# The same for latent attention, and for linear attention with a decay per key element.
MLA_NAMES = [
    (r"self_attn\.q_a_layernorm\b", "attn_q_a_norm"),
    (r"self_attn\.kv_a_layernorm\b", "attn_kv_a_norm"),
    (r"self_attn\.q_([ab])_proj\b", r"attn_q_\1"),
    (r"self_attn\.kv_a_proj_with_mqa\b", "attn_kv_a_mqa"),
]
KDA_NAMES = [
    (r"self_attn\.b_proj\b", "ssm_beta"),
    (r"self_attn\.o_norm\b", "ssm_norm"),
    (r"self_attn\.forget_gate\.f_([ab])_proj\b", r"ssm_f_\1"),
    (r"self_attn\.g_([ab])_proj\b", r"ssm_g_\1"),
    (r"self_attn\.forget_gate\.dt_bias", "ssm_dt.bias"),
]
ENDS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "model.norm.bias": "output_norm.bias",
    "lm_head.weight": "output.weight",
}


def by_names(parameters, config, names, parts):
    """Returns tensors of a file by patterns of parameter names.

    `parts` maps the end of a name to a function that divides the parameter into several tensors.
    """
    tensors = {}
    for name, data in parameters.items():
        if name in ENDS:
            tensors[ENDS[name]] = data
            continue
        layer, name = name.removeprefix("model.layers.").split(".", 1)
        for end, part in {"mlp.experts.gate_up_proj": gate_and_up, **parts}.items():
            if name.endswith(end):
                tensors |= {f"blk.{layer}.{own}": value for own, value in part(data, config, int(layer)).items()}
                break
        else:
            (new,) = {re.sub(pattern, new, name) for pattern, new in names if re.match(pattern, name)}
            tensors[f"blk.{layer}.{new}"] = data
    return tensors


def gate_and_up(data, _config, _layer):
    return dict(zip(("ffn_gate_exps.weight", "ffn_up_exps.weight"), np.split(data, 2, axis=1)))


def three_convolutions(data, _config, _layer):
    return {f"ssm_conv1d_{part}.weight": own for part, own in zip("qkv", np.split(data[:, 0], 3))}


def absorbed(data, config, _layer):
    heads = data.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
    still = config.qk_nope_head_dim
    return {"attn_k_b.weight": heads[:, :still].transpose(0, 2, 1), "attn_v_b.weight": heads[:, still:]}


def decoder_keys(config, heads):
    """Returns the keys that files of all decoders have."""
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "attention.head_count": heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "expert_count": config.n_routed_experts if hasattr(config, "n_routed_experts") else config.num_local_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_gating_func": 2,
        "expert_weights_norm": True,
        "leading_dense_block_count": config.mlp_layer_types.count("dense"),
    }


def step35_keys(config):
    local = [layer == "sliding_attention" for layer in config.layer_types]
    ropes = config.rope_parameters
    return decoder_keys(config, [config.per_layer_config[layer].num_attention_heads for layer in range(len(local))]) | {
        "attention.head_count_kv": [config.num_key_value_heads] * len(local),
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": local,
        "rope.freq_base": ropes["full_attention"]["rope_theta"],
        "expert_shared_feed_forward_length": config.share_expert_dim,
        "expert_weights_scale": config.moe_router_scaling_factor,
        "swiglu_clamp_exp": config.swiglu_limits,
        "swiglu_clamp_shexp": config.swiglu_limits_shared,
    }


def step35_tensors(parameters, config):
    names = [*NAMES, (r"self_attn\.g_proj\b", "attn_gate")]
    tensors = by_names(parameters, config, names, {})
    # Files have the factor of a norm; the parameter is the factor less 1.
    tensors |= {name: data + 1 for name, data in tensors.items() if name.endswith("norm.weight")}
    # Layers without a window use the first entry.
    rope = config.rope_parameters["full_attention"]
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](config, None, layer_type="full_attention")
    plain = rope["rope_theta"] ** -(np.arange(len(frequencies)) / len(frequencies))
    factors = np.ones(config.head_dim // 2)
    factors[: len(plain)] = plain / frequencies.double().numpy()
    return tensors | {"rope_freqs.weight": factors}


def kda_keys(config):
    """Returns keys of models with latent attention, and linear attention with a decay per key element."""
    turned = config.qk_rope_head_dim
    return decoder_keys(config, config.num_attention_heads) | {
        "attention.head_count_kv": [int(kind != "linear_attention") for kind in config.layer_types],
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": config.kv_lora_rank + turned,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + turned,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": turned,
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "kda.head_dim": config.linear_head_dim,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": config.routed_scaling_factor,
    }


def glm5_next_keys(config):
    return kda_keys(config) | {
        "attention.layer_norm_epsilon": 1e-6,
        "attention.indexer.head_count": config.index_n_heads,
        "attention.indexer.key_length": config.index_head_dim,
        "attention.indexer.top_k": config.index_topk,
        "attention.indexer.types": [kind == "full" for kind in config.indexer_types],
        "attention.indexer.kpool": config.index_kpool,
        "attention.indexer.kpool_select_tail": config.index_kpool_always_select_tail,
        "kda.gate_lower_bound": config.linear_lower_bound,
        "hyper_connection.count": config.hc_mult,
        "hyper_connection.sinkhorn_iterations": config.hc_sinkhorn_iters,
        "hyper_connection.epsilon": config.hc_eps,
        "swiglu_clamp_exp": [config.swiglu_limit] * config.num_hidden_layers,
    }


def glm5_next_tensors(parameters, config):
    names = [
        *NAMES,
        *MLA_NAMES,
        *KDA_NAMES,
        (r"(attn|ffn)_hc\.(fn|base|scale)", r"hc_\1_\2.weight"),
        (r"self_attn\.indexer\.wq_b\b", "indexer.attn_q_b"),
        (r"self_attn\.indexer\.wk\b", "indexer.attn_k"),
        (r"self_attn\.indexer\.k_norm\b", "indexer.k_norm"),
        (r"self_attn\.indexer\.weights_proj\b", "indexer.proj"),
        (r"self_attn\.indexer\.index_kpool_compress_(ape|gate)", r"indexer_compressor_\1.weight"),
    ]
    parts = {
        "conv1d.weight": three_convolutions,
        "kv_b_proj.weight": absorbed,
        "A_log": lambda data, *_: {"ssm_a": -np.exp(data)},
    }
    return by_names(parameters, config, names, parts)


def mistral_large4_keys(config):
    turned, rope = config.qk_rope_head_dim, config.rope_parameters
    keys = decoder_keys(config, config.num_attention_heads) | {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": config.kv_lora_rank + turned,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + turned,
        "attention.value_length_mla": config.v_head_dim,
        "attention.indexer.head_count": config.index_n_heads,
        "attention.indexer.key_length": config.index_head_dim,
        "attention.indexer.top_k": config.index_topk,
        "attention.indexer.types": [kind == "full" for kind in config.indexer_types],
        "attention.rope_pattern": [bool(turns) for turns in config.no_rope_layers],
        "attention.kv_source_layers": config.kv_source_layers,
        "rope.dimension_count": turned,
        "rope.freq_base": rope["rope_theta"],
        "expert_gating_func": 1,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": config.routed_scaling_factor,
        "final_logit_softcapping": config.final_logit_softcapping,
    }
    if rope["rope_type"] == "yarn":
        keys |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": rope["beta_fast"],
            "rope.scaling.yarn_beta_slow": rope["beta_slow"],
            "rope.scaling.yarn_attn_factor": rope["attention_factor"],
        }
    return keys


def mistral_large4_tensors(parameters, config):
    names = [
        *NAMES,
        *MLA_NAMES,
        (r"self_attn\.softmax_scaling\.scale", "attn_temperature.weight"),
        (r"self_attn\.softmax_scaling\.bias", "attn_temperature.bias"),
        (r"self_attn\.indexer\.softmax_scaling\.scale", "indexer.temperature.weight"),
        (r"self_attn\.indexer\.softmax_scaling\.bias", "indexer.temperature.bias"),
        (r"self_attn\.indexer\.q_input_norm\b", "indexer.q_norm"),
        (r"self_attn\.indexer\.wq_b\b", "indexer.attn_q_b"),
        (r"self_attn\.indexer\.wk\b", "indexer.attn_k"),
        (r"self_attn\.indexer\.k_norm\b", "indexer.k_norm"),
        (r"self_attn\.indexer\.weights_proj\b", "indexer.proj"),
    ]

    def absorbed_of_layer(data, config, layer):
        heads = data.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
        still = heads.shape[1] - config.v_head_dim
        return {"attn_k_b.weight": heads[:, :still].transpose(0, 2, 1), "attn_v_b.weight": heads[:, still:]}

    parameters = dict(parameters)
    alpha = parameters.pop("model.rotary_emb.alpha").astype(np.float64)
    tensors = by_names(parameters, config, names, {"kv_b_proj.weight": absorbed_of_layer})
    return tensors | {"rope_freqs.weight": np.exp(-alpha)}


def bailingmoe3_keys(config):
    return kda_keys(config) | {
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "kda.safe_gate": config.kda_safe_gate,
        "kda.gate_lower_bound": config.kda_lower_bound,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
    }


def bailingmoe3_tensors(parameters, config):
    def gate(data, config, layer):
        return {f"{'attn_gate' if config.layer_types[layer] == 'full_attention' else 'ssm_g_a'}.weight": data}

    names = [*NAMES, *MLA_NAMES, *KDA_NAMES, (r"self_attn\.forget_gate\.f_proj\b", "ssm_f_a")]
    parts = {
        "conv1d.weight": three_convolutions,
        "kv_b_proj.weight": absorbed,
        "self_attn.g_proj.weight": gate,
        "A_log": lambda data, *_: {"ssm_a": np.exp(data)[:, None]},
    }
    return by_names(parameters, config, names, parts)


def neighbours_turn(tensors, _keys, config):
    """Reorders rows for Hy4's file, where RoPE rotates neighbours; transformers rotates halves.

    This concerns the last elements of queries and keys, in attention and in the index.
    """
    turned = config.qk_rope_head_dim
    order = np.arange(turned).reshape(2, -1).T.ravel()
    heads = {
        "attn_q_b.weight": config.qk_nope_head_dim + turned,
        "attn_kv_a_mqa.weight": config.kv_lora_rank + turned,
        "indexer.attn_q_b.weight": config.index_head_dim,
        "indexer.attn_k.weight": config.index_head_dim,
        "indexer.k_norm.weight": config.index_head_dim,
        "indexer.k_norm.bias": config.index_head_dim,
    }
    for name, data in tensors.items():
        if length := heads.get(name.split(".", 2)[-1]):
            rows = data.reshape(-1, length, *data.shape[1:])
            rows[:, -turned:] = rows[:, length - turned + order]
            tensors[name] = rows.reshape(data.shape)


def fused_by_key_head(tensors, _keys, config):
    """Makes `ssm_in` of the first files of Qwen3-Next.

    The rows of `attn_qkv` and `attn_gate` are grouped by key head: queries, keys, values, gates.
    """
    for name in [name for name in tensors if name.endswith("attn_qkv.weight")]:
        layer = name.removesuffix("attn_qkv.weight")
        qkv, z = tensors.pop(name), tensors.pop(layer + "attn_gate.weight")
        groups, keys = config.linear_num_key_heads, config.linear_num_key_heads * config.linear_key_head_dim
        parts = [part.reshape(groups, -1, qkv.shape[-1]) for part in (qkv[:keys], qkv[keys : 2 * keys], qkv[2 * keys :], z)]
        tensors[layer + "ssm_in.weight"] = np.concatenate(parts, axis=1).reshape(-1, qkv.shape[-1])


def ling2(tensors, keys, config):
    """Changes a file of dots.llm1 to one of Ling 2: one matrix for queries, keys and values, and groups of experts.

    transformers does not have Ling 2. Its dots.llm1 has groups, which the converter ignores.
    """
    for name in [name for name in tensors if name.endswith("attn_q.weight")]:
        layer = name.removesuffix("attn_q.weight")
        tensors[layer + "attn_qkv.weight"] = np.concatenate([tensors.pop(f"{layer}attn_{part}.weight") for part in "qkv"])
    for key in [key for key in keys if key.startswith("dots1.")]:
        keys[key.replace("dots1", "bailingmoe2")] = keys.pop(key)
    keys["general.architecture"] = "bailingmoe2"
    keys["bailingmoe2.expert_group_count"] = config.n_group
    keys["bailingmoe2.expert_group_used_count"] = config.topk_group


def untransposed(tensors, _keys, _config):
    """Swaps rows and columns of Qwen3-VL's experts. transformers has rows first since version 5;
    the converter expects the hub's columns first.
    """
    for name in [name for name in tensors if name.endswith("ffn_gate_exps.weight")]:
        layer = name.removesuffix("ffn_gate_exps.weight")
        halves = np.concatenate([tensors[f"{layer}ffn_{half}_exps.weight"] for half in ("gate", "up")], axis=1).transpose(0, 2, 1)
        gate, up = np.split(halves, 2, axis=1)
        down = tensors[f"{layer}ffn_down_exps.weight"].transpose(0, 2, 1)
        for part, rows in (("gate", gate), ("up", up), ("down", down)):
            tensors[f"{layer}ffn_{part}_exps.weight"] = np.ascontiguousarray(rows)


def renamed(new, **keys):
    """Returns a change that gives a file another architecture and other keys.

    A key whose value is `None` is removed.
    """

    def change(_tensors, old, _config):
        name = old["general.architecture"]
        for key in [key for key in old if key.startswith(name + ".")]:
            old[key.replace(name, new, 1)] = old.pop(key)
        old["general.architecture"] = new
        for key, value in keys.items():
            old.pop(f"{new}.{key}", None)
            if value is not None:
                old[f"{new}.{key}"] = value

    return change


def attends_every_second(_tensors, keys, _config):
    """Adds the interval of layers with attention.

    Files of MiniMax-01 lack this key if the interval is that of the released model.
    """
    keys["minimax-01.full_attention_interval"] = 2


def keys_and_values_of_all_heads(tensors, keys, config):
    """Changes a file of DeepSeek-V2 to the first form of such files.

    One matrix makes keys and values of the latent row, and their lengths are those of heads.
    """
    for name in [name for name in tensors if name.endswith("attn_k_b.weight")]:
        layer = name.removesuffix("attn_k_b.weight")
        k, v = tensors.pop(name).transpose(0, 2, 1), tensors.pop(layer + "attn_v_b.weight")
        tensors[layer + "attn_kv_b.weight"] = np.concatenate([k, v], axis=1).reshape(-1, k.shape[-1])
    for part in ("key", "value"):
        keys[f"deepseek2.attention.{part}_length"] = keys.pop(f"deepseek2.attention.{part}_length_mla")
    keys["deepseek2.attention.head_count_kv"] = config.num_attention_heads


class DeepseekExperts(torch.nn.Module):
    """Experts of DeepSeek's first model: a softmax over all, the top k without normalisation, and a
    shared expert. transformers does not have them.
    """

    def __init__(self, config, layer):
        super().__init__()
        network = type(layer.mlp)

        def of(width):
            return network(type(config)(**config.to_dict() | {"intermediate_size": width}))

        self.used = config.num_experts_per_tok
        self.normalised = getattr(config, "norm_topk_prob", False)
        self.gate = torch.nn.Linear(config.hidden_size, config.n_routed_experts, bias=False)
        self.experts = torch.nn.ModuleList(of(config.moe_intermediate_size) for _ in range(config.n_routed_experts))
        self.shared_experts = of(config.moe_intermediate_size * config.n_shared_experts)

    def forward(self, x):
        weights, ids = self.gate(x).softmax(-1).topk(self.used)
        if self.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        weights = torch.zeros_like(self.gate(x)).scatter(-1, ids, weights)
        routed = sum(expert(x) * weights[..., i : i + 1] for i, expert in enumerate(self.experts))
        return routed + self.shared_experts(x)


class DeepseekForCausalLM(LlamaForCausalLM):
    """DeepSeek's first model with experts, made of Llama's layers."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers[config.first_k_dense_replace :]:
            layer.mlp = DeepseekExperts(config, layer)


class LimitedExperts(torch.nn.Module):
    """Experts with a limit of gates, and limits of up on both sides."""

    def __init__(self, experts, limit):
        super().__init__()
        self.gate_up_proj, self.down_proj, self.limit = experts.gate_up_proj, experts.down_proj, limit

    def forward(self, x, chosen, weights):
        gate, up = torch.einsum("th,eoh->teo", x, self.gate_up_proj).chunk(2, -1)
        hidden = torch.nn.functional.silu(gate.clamp(max=self.limit)) * up.clamp(-self.limit, self.limit)
        each = torch.einsum("tei,ehi->teh", hidden, self.down_proj)
        return (each.gather(1, chosen[..., None].expand(-1, -1, x.shape[-1])) * weights[..., None]).sum(1)


class MapleForCausalLM(MellumForCausalLM):
    """Mellum without RoPE in layers with full attention, and with a limit of gates (Maple, which
    transformers does not have).
    """

    def __init__(self, config):
        super().__init__(config)
        for layer, kind in zip(self.model.layers, config.layer_types):
            layer.mlp.experts = LimitedExperts(layer.mlp.experts, config.swiglu_limit)
            if kind == "full_attention":
                layer.self_attn.register_forward_pre_hook(self.unturned, with_kwargs=True)

    @staticmethod
    def unturned(_attention, arguments, named):
        cos, sin = named["position_embeddings"]
        return arguments, named | {"position_embeddings": (torch.ones_like(cos), torch.zeros_like(sin))}


class LayerNormed(LlamaForCausalLM):
    """Llama with layer norms (Orion, which transformers does not have)."""

    def __init__(self, config):
        super().__init__(config)
        norm = lambda: torch.nn.LayerNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.model.norm = norm()
        for layer in self.model.layers:
            layer.input_layernorm, layer.post_attention_layernorm = norm(), norm()


def slopes(heads, max_bias=8.0):
    """Returns the ALiBi slope of each head (arXiv 2108.12409)."""
    power = 2 ** (heads.bit_length() - 1)
    steps = [*range(1, power + 1), *(step + 0.5 for step in range(heads - power))]
    return 2.0 ** (-max_bias * torch.tensor(steps, dtype=torch.float64) / power)


class Falling:
    """Mixin for decoders like Llama with ALiBi in place of RoPE.

    These are the Baichuan model of 13 billion parameters, Refact and Jais, which transformers does not have.
    """

    def forward(self, input_ids):
        model, count = self.model, input_ids.shape[1]
        x = model.embed_tokens(input_ids)
        back = torch.arange(count)[:, None] - torch.arange(count)
        falling = -slopes(self.config.num_attention_heads)[:, None, None] * back
        mask = falling.masked_fill(back < 0, float("-inf")).to(x.dtype)[None]
        still = torch.ones(1, count, model.layers[0].self_attn.head_dim, dtype=x.dtype)
        for layer in model.layers:
            x = layer(x, attention_mask=mask, position_embeddings=(still, torch.zeros_like(still)))
        return SimpleNamespace(logits=self.lm_head(model.norm(x)))


class FallingForCausalLM(Falling, LlamaForCausalLM):
    pass


class UnitHeadForCausalLM(LlamaForCausalLM):
    """Llama whose output matrix has rows of length 1, rounded to f16 (Baichuan 2)."""

    def forward(self, input_ids):
        x = self.model(input_ids).last_hidden_state
        rows = torch.nn.functional.normalize(self.lm_head.weight.double()).half()
        return SimpleNamespace(logits=x @ rows.to(x.dtype).T)


class JaisForCausalLM(Falling, LayerNormed):
    """Jais, which divides scores by the length of a head instead of its root."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.self_attn.scaling = 1 / layer.self_attn.head_dim


class PlmForCausalLM(DeepseekV3ForCausalLM):
    """PLM, which transformers does not have: DeepSeek's attention, and a network of squared ReLU without a gate."""

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = NemotronMLP(config)


# Spark X2.5: layers with a window, and the rotated elements of a head and the base of RoPE, for
# layers without and with a window.
SPARK = {"local": [True, False, True], "window": 24, "dims": (8, 16), "bases": (500000.0, 10000.0)}


class SparkForCausalLM(LlamaForCausalLM):
    """Spark X2.5, which transformers does not have.

    Layers with a window have their own RoPE, only a part of a head is rotated, and a sigmoid per head weights its
    values.
    """

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.self_attn.g_proj = torch.nn.Linear(config.hidden_size, config.num_attention_heads, bias=False)

    def forward(self, input_ids):
        model, length = self.model, self.config.head_dim
        x = model.embed_tokens(input_ids[0])
        back = torch.arange(len(x))[:, None] - torch.arange(len(x))
        for layer, local in zip(model.layers, SPARK["local"], strict=True):
            attention, h = layer.self_attn, layer.input_layernorm(x)
            q, k, v = (part(h).unflatten(-1, (-1, length)).transpose(0, 1) for part in (attention.q_proj, attention.k_proj, attention.v_proj))
            dims, base = SPARK["dims"][local], SPARK["bases"][local]
            angles = torch.arange(len(x), dtype=torch.float64)[:, None] * base ** -(torch.arange(0, dims, 2, dtype=torch.float64) / dims)
            turn = torch.polar(torch.ones_like(angles), angles)
            q, k = (turned_halves(part, turn, dims) for part in (q, k))
            k, v = (part.repeat_interleave(len(q) // len(k), 0) for part in (k, v))
            seen = (back >= 0) & (back < SPARK["window"] if local else back >= 0)
            scores = (q @ k.mT / length**0.5).masked_fill(~seen, float("-inf"))
            y = scores.softmax(-1) @ v * attention.g_proj(h).sigmoid().T[..., None]
            x = x + attention.o_proj(y.transpose(0, 1).flatten(1))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return SimpleNamespace(logits=self.lm_head(model.norm(x))[None])


class OpenElmForCausalLM(Qwen3ForCausalLM):
    """OpenELM, which transformers does not have: layers of Qwen3 with different sizes.

    `sizes` has query heads, key heads and network width of each layer.
    """

    def __init__(self, config):
        super().__init__(config)
        for number, (heads, kv_heads, inner) in enumerate(config.sizes):
            own = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": inner}
            own = type(config)(**config.to_dict() | own)
            own._attn_implementation = self.config._attn_implementation
            self.model.layers[number] = Qwen3DecoderLayer(own, number)


class CogVlmForCausalLM(LlamaForCausalLM):
    """CogVLM, which transformers does not have:

    Llama with separate matrices for image tokens, which texts do not use.
    """

    def __init__(self, config):
        super().__init__(config)
        matrix = lambda rows, columns: torch.nn.Linear(columns, rows, bias=False)
        width, inner = config.hidden_size, config.intermediate_size
        for layer in self.model.layers:
            layer.vis_attn_qkv, layer.vis_attn_output = matrix(3 * width, width), matrix(width, width)
            layer.vis_gate, layer.vis_up, layer.vis_down = matrix(inner, width), matrix(inner, width), matrix(width, inner)


class ChameleonTextForCausalLM(LlamaForCausalLM):
    """Chameleon without image tokens:

    Llama's layers with Chameleon's attention, and norms after blocks if the configuration has
    `swin_norm`.
    """

    def __init__(self, config):
        super().__init__(config)
        own = ChameleonConfig(**{key: getattr(config, key) for key in ["hidden_size", "num_attention_heads", "num_key_value_heads", "rope_parameters"]})
        own._attn_implementation = self.config._attn_implementation
        for number, layer in enumerate(self.model.layers):
            layer.self_attn = ChameleonAttention(own, number)
            if config.swin_norm:
                layer.forward = functools.partial(self.behind, layer)

    @staticmethod
    def behind(layer, x, **named):
        x = x + layer.input_layernorm(layer.self_attn(x, **named)[0])
        return x + layer.post_attention_layernorm(layer.mlp(x))


class TalkieForCausalLM(LlamaForCausalLM):
    """Talkie, which transformers does not have, by its formula (`frontend/architectures/src/models/talkie.rs`).

    Norms have no weights, RoPE rotates in the other direction, and heads, blocks, the embedding and logits have
    factors.
    """

    def __init__(self, config):
        super().__init__(config)
        number = lambda *shape: torch.nn.Parameter(torch.ones(shape))
        self.model.norm = torch.nn.Identity()
        for layer in self.model.layers:
            layer.input_layernorm = layer.post_attention_layernorm = torch.nn.Identity()
            layer.attn_gain, layer.mlp_gain, layer.embed_skip = number(1), number(1), number(1)
            layer.head_gain = number(config.num_attention_heads)

    def forward(self, input_ids):
        model, config = self.model, self.config
        norm = lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:], eps=config.rms_norm_eps)
        embedded = x = norm(model.embed_tokens(input_ids[0]))
        length = config.hidden_size // config.num_attention_heads
        seen = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        base = config.rope_parameters["rope_theta"]
        angles = torch.arange(len(x), dtype=torch.float64)[:, None] * base ** -(torch.arange(0, length, 2, dtype=torch.float64) / length)
        turn = torch.polar(torch.ones_like(angles), -angles)
        for layer in model.layers:
            attention, h = layer.self_attn, norm(x)
            q, k, v = (part(h).unflatten(-1, (-1, length)).transpose(0, 1) for part in (attention.q_proj, attention.k_proj, attention.v_proj))
            q, k = (norm(turned_halves(part, turn, length)) for part in (q, k))
            q = q * layer.head_gain[:, None, None]
            k, v = (part.repeat_interleave(len(q) // len(k), 0) for part in (k, v))
            y = (q @ k.mT / length**0.5).masked_fill(~seen, float("-inf")).softmax(-1) @ v
            x = x + layer.attn_gain * attention.o_proj(y.transpose(0, 1).flatten(1))
            x = x + layer.mlp_gain * layer.mlp(norm(x))
            x = x + layer.embed_skip * embedded
        return SimpleNamespace(logits=(config.logit_scale * self.lm_head(norm(x)))[None])


def turned_halves(x, turn, dims):
    """Rotates the first elements of a head, in pairs of halves."""
    first, second = x[..., :dims].double().chunk(2, -1)
    turned = torch.complex(first, second) * turn
    return torch.cat([turned.real.to(x.dtype), turned.imag.to(x.dtype), x[..., dims:]], -1)


class MptNormedAttention(MptAttention):
    """MPT's attention with norms of queries and keys, which transformers leaves out."""

    def __init__(self, config, layer):
        super().__init__(config, layer)
        self.q_ln, self.k_ln = (torch.nn.LayerNorm(config.d_model, eps=config.layer_norm_epsilon, bias=False) for _ in range(2))

    def forward(self, x, position_bias, attention_mask, **_):
        q, k, v = self.Wqkv(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for part in (self.q_ln(q), self.k_ln(k), v))
        scores = (q @ k.mT * self.softmax_scale).masked_fill(attention_mask, float("-inf"))
        return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), None


class MptNormed(MptForCausalLM):
    """MPT with these norms, and with a table of positions in place of ALiBi, as in the original code."""

    def __init__(self, config):
        super().__init__(config)
        self.transformer.wpe = torch.nn.Embedding(config.max_seq_len, config.d_model)
        for number, block in enumerate(self.transformer.blocks):
            block.attn = MptNormedAttention(config, number)

    def forward(self, input_ids):
        model = self.transformer
        x = model.wte(input_ids) + model.wpe(torch.arange(input_ids.shape[1]))
        return super().forward(inputs_embeds=x)


# Names in OPT, GPT-Neo and GPT-J, and in files.
FIRST_NAMES = [
    (r"(transformer\.wte|model\.decoder\.embed_tokens)\.", "token_embd."),
    (r"(transformer\.wpe|model\.decoder\.embed_positions)\.", "position_embd."),
    (r"(transformer\.ln_f|model\.decoder\.final_layer_norm)\.", "output_norm."),
    (r"lm_head\.", "output."),
    (r"(transformer\.h|model\.decoder\.layers)\.", "blk."),
    (r"(ln_1|self_attn_layer_norm)\.", "attn_norm."),
    (r"(ln_2|final_layer_norm)\.", "ffn_norm."),
    (r"(attn\.attention|attn|self_attn)\.([qkv])_proj", r"attn_\2"),
    (r"(attn\.attention|attn|self_attn)\.out_proj", "attn_output"),
    (r"(mlp\.c_fc|mlp\.fc_in|fc1)\b", "ffn_up"),
    (r"(mlp\.c_proj|mlp\.fc_out|fc2)\b", "ffn_down"),
]


def first_keys(config):
    """Returns keys of the first decoders, as graphs read them."""
    width, inner = config.hidden_size, getattr(config, "ffn_dim", None) or getattr(config, "n_inner", None) or getattr(config, "intermediate_size", None)
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": width,
        "feed_forward_length": inner or 4 * width,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_attention_heads,
        "attention.layer_norm_epsilon": getattr(config, "layer_norm_epsilon", 1e-5),
    }


def first_tensors(parameters, config):
    tensors = {}
    for name, data in parameters.items():
        if config.tie_word_embeddings and name == "lm_head.weight":
            continue
        # The first two rows of the table belong to no position.
        data = data[2:] if "embed_positions" in name else data
        for pattern, new in FIRST_NAMES:
            name = re.sub(rf"(^|\.){pattern}", lambda match: match[1] + re.sub(pattern, new, match[0][len(match[1]) :]), name, count=1)
        tensors[name] = data
    return tensors


class MaskedGPTNeo(GPTNeoForCausalLM):
    """GPT-Neo. Its masks are buffers whose names end like biases; they must not be randomised."""

    def forward(self, input_ids):
        for layer in self.transformer.h:
            attention = layer.attn.attention
            before = torch.ones(attention.bias.shape[2:]).tril().bool()
            if attention.attention_type == "local":
                before ^= before.tril(-self.config.window_size)
            attention.bias.copy_(before)
        return super().forward(input_ids)


def gpt_neo_keys(config):
    local = [kind == "local" for kind in config.attention_layers]
    return first_keys(config) | {"attention.scale": 1.0, "attention.sliding_window": config.window_size, "attention.sliding_window_pattern": local}


def gpt_j_keys(config):
    return first_keys(config) | {"rope.dimension_count": config.rotary_dim, "rope.freq_base": 10000.0}


class FallingFalcon(FalconForCausalLM):
    """Falcon of RefinedWeb, without rounding ALiBi to bf16."""

    def forward(self, input_ids):
        def falls(mask, heads, dtype):
            power = 1 << heads.bit_length() - 1
            steps = [*range(1, power + 1), *(i + 0.5 for i in range(heads - power))]
            slopes = torch.tensor([2 ** (-8 * step / power) for step in steps], dtype=torch.float64)
            positions = (mask.cumsum(-1) - 1).double()
            return (slopes[:, None, None] * positions[:, None]).reshape(heads, 1, -1).to(dtype)

        with unittest.mock.patch("transformers.models.falcon.modeling_falcon.build_alibi_tensor", falls):
            return super().forward(input_ids)


def falcon_keys(config):
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.ffn_hidden_size,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_attention_heads,
        "attention.layer_norm_epsilon": config.layer_norm_epsilon,
        "attention.max_alibi_bias": 8.0,
        "use_parallel_residual": False,
    }


def falcon_tensors(parameters, config):
    """Returns tensors of Falcon, in which queries, keys and values of a head are neighbours."""
    ends = {"word_embeddings": "token_embd", "ln_f": "output_norm"}
    parts = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "query_key_value": "attn_qkv", "dense": "attn_output"}
    parts |= {"dense_h_to_4h": "ffn_up", "dense_4h_to_h": "ffn_down"}
    tensors = {}
    for name, data in parameters.items():
        *before, part, kind = name.split(".")
        if name == "lm_head.weight":
            continue
        if part == "query_key_value":
            data = data.reshape(config.num_attention_heads, 3, -1, *data.shape[1:]).swapaxes(0, 1).reshape(data.shape)
        tensors[f"{ends[part]}.{kind}" if part in ends else f"blk.{before[2]}.{parts[part]}.{kind}"] = data
    return tensors


class InPlaceOfAttention(torch.nn.Module):
    """Matrix in place of attention, or nothing."""

    def __init__(self, config, kind):
        super().__init__()
        self.o_proj = torch.nn.Linear(config.hidden_size, config.hidden_size, bias=False) if kind == "linear" else None

    def forward(self, hidden_states, **_):
        return (self.o_proj(hidden_states) if self.o_proj else torch.zeros_like(hidden_states)), None


class WithoutNetwork(torch.nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)


class FewerParts(LlamaForCausalLM):
    """Llama whose layers lack parts (Nemotron of 51 billion parameters and more, which transformers does not have).

    `parts` has the parts of each layer.
    """

    def __init__(self, config):
        super().__init__(config)
        for layer, (attention, network) in zip(self.model.layers, config.parts):
            if attention != "attention":
                layer.self_attn = InPlaceOfAttention(config, attention)
            if attention == "none":
                layer.input_layernorm = torch.nn.Identity()
            if not network:
                layer.mlp, layer.post_attention_layernorm = WithoutNetwork(), torch.nn.Identity()


def plain_keys(config):
    """Returns keys of decoders without experts."""
    return {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": getattr(config, "head_dim", config.hidden_size // config.num_attention_heads),
        "rope.freq_base": config.rope_parameters.get("full_attention", config.rope_parameters)["rope_theta"],
    }


def plain_tensors(parameters, config):
    return by_names(parameters, config, NAMES, {})


def neighbours(data, heads):
    """Reorders rows of heads so that both elements of a RoPE pair, half a head apart, become neighbours."""
    return data.reshape(heads, 2, -1, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)


def orion_keys(config):
    keys = plain_keys(config)
    return keys | {"attention.layer_norm_epsilon": keys.pop("attention.layer_norm_rms_epsilon")}


def grove_keys(config):
    keys = plain_keys(config) | {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_chunk_feed_forward_length": config.head_dim,
        "experts_per_group": 2,
        "expert_group_scale": 0.05,
    }
    del keys["rope.dimension_count"]
    return keys


def grove_tensors(parameters, config):
    def small_gate_and_up(data, *_):
        return dict(zip(("ffn_gate_chexps.weight", "ffn_up_chexps.weight"), np.split(data, 2, axis=1)))

    parts = {"mlp.chunk_experts.gate_up_proj": small_gate_and_up}
    return by_names(parameters, config, [*NAMES, (r"mlp\.chunk_experts\.down_proj", "ffn_down_chexps.weight")], parts)


def still_keys(config):
    """Returns keys of decoders without RoPE."""
    return {key: value for key, value in plain_keys(config).items() if not key.startswith("rope.")}


def falling_keys(config):
    """Returns keys of decoders with ALiBi, whose files have a key for it."""
    return still_keys(config) | {"attention.max_alibi_bias": 8.0}


def baichuan_2_keys(config):
    """Returns keys of Baichuan 2.

    Readers recognise its files by the vocabulary, which is too large for a test, so a key replaces
    that.
    """
    return plain_keys(config) | {"norm_head": True}


def baichuan_tensors(parameters, config):
    return neighbours_of(plain_tensors(parameters, config), config)


def jais_keys(config):
    keys = falling_keys(config)
    return keys | {"attention.layer_norm_epsilon": keys.pop("attention.layer_norm_rms_epsilon")}


def jais_tensors(parameters, config):
    """Returns tensors of Jais, with one matrix of queries, keys and values."""
    tensors = plain_tensors(parameters, config)
    for name in [name for name in tensors if ".attn_q." in name]:
        parts = [tensors.pop(name.replace("attn_q", f"attn_{part}")) for part in "qkv"]
        tensors[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    return tensors


def qwen_keys(config):
    """Returns keys of Qwen 1, whose network width counts gate and up together."""
    return plain_keys(config) | {"feed_forward_length": 2 * config.intermediate_size}


def plm_keys(config):
    return plain_keys(config) | {
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": config.qk_nope_head_dim + config.qk_rope_head_dim,
        "attention.value_length": config.v_head_dim,
        "rope.dimension_count": config.qk_rope_head_dim,
    }


def plm_tensors(parameters, config):
    """Returns tensors of PLM: one matrix for keys and values of all heads, and the embeddings as output matrix."""
    names = [*NAMES, *MLA_NAMES, (r"self_attn\.q_proj\b", "attn_q"), (r"self_attn\.kv_b_proj\b", "attn_kv_b")]
    tensors = by_names(parameters, config, list(dict(names).items()), {})
    del tensors["output.weight"]
    return tensors


def spark_keys(config):
    (full, local), (base, local_base) = SPARK["dims"], SPARK["bases"]
    return plain_keys(config) | {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.sliding_window": SPARK["window"],
        "attention.sliding_window_pattern": SPARK["local"],
        "rope.dimension_count": full,
        "rope.dimension_count_swa": local,
        "rope.freq_base": base,
        "rope.freq_base_swa": local_base,
    }


def spark_tensors(parameters, config):
    gate = {name: data for name, data in parameters.items() if ".g_proj." in name}
    tensors = jais_tensors({name: data for name, data in parameters.items() if name not in gate}, config)
    return tensors | {f"blk.{name.split('.')[2]}.attn_gate.weight": data for name, data in gate.items()}


def openelm_keys(config):
    heads, kv_heads, inner = zip(*config.sizes)
    own = {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim, "feed_forward_length": list(inner)}
    return plain_keys(config) | own | {"attention.head_count": list(heads), "attention.head_count_kv": list(kv_heads)}


def openelm_tensors(parameters, config):
    """Returns tensors of OpenELM, with the embeddings as output matrix."""
    tensors = jais_tensors(parameters, config)
    del tensors["output.weight"]
    return tensors


def codeshell_keys(config):
    config.rms_norm_eps = config.norm_epsilon
    keys = orion_keys(config) | {"rope.scaling.type": "linear", "rope.scaling.factor": 1.0}
    del keys["rope.dimension_count"]
    return keys


def codeshell_tensors(parameters, config):
    names = [*NAMES, (r"mlp\.c_fc\b", "ffn_up"), (r"mlp\.c_proj\b", "ffn_down")]
    tensors = by_names(parameters, config, names, {})
    for name in [name for name in tensors if ".attn_q." in name]:
        parts = [tensors.pop(name.replace("attn_q", f"attn_{part}")) for part in "qkv"]
        tensors[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    return tensors


def codeshell_one_tensors(parameters, config):
    """Returns tensors of a CodeShell file that has only the output matrix, which is also the table of embeddings."""
    return codeshell_tensors({name: data for name, data in parameters.items() if "embed_tokens" not in name}, config)


def deepseek_ocr_keys(config):
    """Returns keys of DeepSeek-OCR, with those that its decoder does not use: the rotated part of a
    latent key, and a window.
    """
    return plain_keys(config) | {
        "rope.dimension_count": 0,
        "attention.sliding_window": 24,
        "leading_dense_block_count": config.first_k_dense_replace,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_count": config.n_routed_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": 1.0,
    }


def deepseek_ocr_tensors(parameters, config):
    """Returns tensors of DeepSeek-OCR, with all experts of a layer in one tensor."""
    parts = {name: data for name, data in parameters.items() if ".mlp.experts." in name}
    routers = {name: data for name, data in parameters.items() if name.endswith("mlp.gate.weight")}
    tensors = plain_tensors({name: data for name, data in parameters.items() if name not in parts | routers}, config)
    for name, data in routers.items():
        layer = name.split(".")[2]
        tensors[f"blk.{layer}.ffn_gate_inp.weight"] = data
        for part in ("gate", "up", "down"):
            matrices = [parts[f"model.layers.{layer}.mlp.experts.{i}.{part}_proj.weight"] for i in range(config.n_routed_experts)]
            tensors[f"blk.{layer}.ffn_{part}_exps.weight"] = np.stack(matrices)
    return tensors


def cogvlm_tensors(parameters, config):
    pictures = {name: data for name, data in parameters.items() if ".vis_" in name}
    tensors = jais_tensors({name: data for name, data in parameters.items() if name not in pictures}, config)
    return tensors | {name.replace("model.layers", "blk"): data for name, data in pictures.items()}


def chameleon_keys(config):
    return plain_keys(config) | {"swin_norm": config.swin_norm}


def chameleon_tensors(parameters, config):
    tensors = neighbours_of(plain_tensors(parameters, config), config)
    for name in [name for name in tensors if "attn_q_norm" in name or "attn_k_norm" in name]:
        heads = tensors[name]
        tensors[name] = heads.reshape(len(heads), 2, -1).swapaxes(1, 2).reshape(heads.shape)
    return tensors


def talkie_keys(config):
    return plain_keys(config) | {"logit_scale": config.logit_scale}


def talkie_tensors(parameters, config):
    """Returns tensors of Talkie, with the sign of the second half of each head flipped, so that
    RoPE rotates in the usual direction.
    """
    gains = {"attn_gain": "attn_output.scale", "mlp_gain": "ffn_down.scale", "embed_skip": "layer_output_scale.weight", "head_gain": "attn_q_norm.weight"}
    own = {name: data for name, data in parameters.items() if name.split(".")[-1] in gains}
    tensors = plain_tensors({name: data for name, data in parameters.items() if name not in own}, config)
    for name, data in tensors.items():
        if "attn_q." in name or "attn_k." in name:
            halves = data.reshape(-1, 2, config.hidden_size // config.num_attention_heads // 2, data.shape[-1])
            tensors[name] = (halves * np.array([1, -1])[None, :, None, None]).reshape(data.shape)
    for name, data in own.items():
        _, _, layer, part = name.split(".")
        tensors[f"blk.{layer}.{gains[part]}"] = data[:, None] if part == "head_gain" else data
    return tensors


def bitnet_tensors(parameters, config):
    names = [*NAMES, (r"self_attn\.attn_sub_norm\b", "attn_sub_norm"), (r"mlp\.ffn_sub_norm\b", "ffn_sub_norm")]
    return by_names(parameters, config, names, {})


def maincoder_tensors(parameters, config):
    names = [*NAMES, (r"self_attn\.query_layernorm\b", "attn_q_norm"), (r"self_attn\.key_layernorm\b", "attn_k_norm")]
    tensors = by_names(parameters, config, names, {})
    heads = {"attn_q.weight": config.num_attention_heads, "attn_k.weight": config.num_key_value_heads, "attn_q_norm.weight": 1, "attn_k_norm.weight": 1}
    return {name: neighbours(data, heads[name.split(".", 2)[-1]]) if name.split(".", 2)[-1] in heads else data for name, data in tensors.items()}


def deci_keys(config):
    heads = [0 if attention == "none" else config.num_attention_heads for attention, _ in config.parts]
    return plain_keys(config) | {
        "attention.head_count": heads,
        "attention.head_count_kv": [config.num_key_value_heads if attention == "attention" else 0 for attention, _ in config.parts],
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "feed_forward_length": [config.intermediate_size if network else 0 for _, network in config.parts],
    }


def deci_tensors(parameters, config):
    return neighbours_of(plain_tensors(parameters, config), config)


def neighbours_of(tensors, config):
    """Reorders tensors so that the pairs of RoPE are neighbours."""
    heads = {"attn_q.weight": config.num_attention_heads, "attn_k.weight": config.num_key_value_heads}
    turned = lambda name, data: neighbours(data, heads[name.split(".", 2)[-1]]) if name.split(".", 2)[-1] in heads else data
    return {name: turned(name, data) for name, data in tensors.items()}


def windowed_keys(config):
    """Returns keys of decoders that have layers with a window."""
    return plain_keys(config) | {
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.sliding_window": config.sliding_window,
        "attention.sliding_window_pattern": [kind == "sliding_attention" for kind in config.layer_types],
    }


def cwm_tensors(parameters, config):
    rope = config.rope_parameters
    pairs = config.head_dim // 2
    turns = rope["original_max_position_embeddings"] * rope["rope_theta"] ** -(np.arange(pairs) / pairs) / (2 * np.pi)
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return neighbours_of(plain_tensors(parameters, config), config) | {"rope_freqs.weight": 1 / ((1 - smooth) / factor + smooth)}


def hyperclovax_keys(config):
    return plain_keys(config) | {
        "attention.scale": config.attention_multiplier,
        "embedding_scale": config.embedding_multiplier,
        "residual_scale": config.residual_multiplier,
        "logit_scale": config.logits_scaling,
    }


def hyperclovax_tensors(parameters, config):
    names = [*NAMES, (r"post_norm1\b", "post_attention_norm"), (r"post_norm2\b", "post_ffw_norm")]
    return neighbours_of(by_names(parameters, config, names, {}), config)


def flint_keys(config):
    return windowed_keys(config) | {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "expert_shared_feed_forward_length": config.shared_expert_intermediate_size,
        "expert_gating_func": 2,
        "expert_weights_norm": config.norm_topk_prob,
    }


def flint_tensors(parameters, config):
    names = [*NAMES, (r"self_attn\.sinks", "attn_sinks.weight"), (r"mlp\.shared_expert\.(gate|up|down)_proj\b", r"ffn_\1_shexp")]
    return by_names(parameters, config, names, {})


def maple_keys(config):
    return windowed_keys(config) | {
        "expert_count": config.num_experts,
        "expert_used_count": config.num_experts_per_tok,
        "expert_feed_forward_length": config.moe_intermediate_size,
        "swiglu_clamp_exp": [config.swiglu_limit] * config.num_hidden_layers,
    }


def lfm3_keys(config):
    return windowed_keys(config) | {
        "attention.head_count_kv": [0 if kind == "conv" else config.num_key_value_heads for kind in config.layer_types],
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
        "shortconv.l_cache": config.conv_L_cache,
    }


def lfm3_tensors(parameters, config):
    names = [
        (r"operator_norm\b", "attn_norm"),
        (r"ffn_norm\b", "ffn_norm"),
        (r"post_operator_norm\b", "post_attention_norm"),
        (r"post_ffn_norm\b", "post_ffw_norm"),
        (r"conv\.conv\b", "shortconv.conv"),
        (r"conv\.(in|out)_proj\b", r"shortconv.\1_proj"),
        (r"self_attn\.([qk])_(layer)?norm\b", r"attn_\1_norm"),
        (r"self_attn\.([qkv])_proj\b", r"attn_\1"),
        (r"self_attn\.(o|out)_proj\b", "attn_output"),
        (r"self_attn\.g_proj\b", "attn_gate"),
        (r"feed_forward\.w1\b", "ffn_gate"),
        (r"feed_forward\.w2\b", "ffn_down"),
        (r"feed_forward\.w3\b", "ffn_up"),
    ]
    norm = "model.embedding_norm.weight"
    tensors = by_names({name: data for name, data in parameters.items() if name != norm}, config, names, {"conv.conv.weight": lambda data, *_: {"shortconv.conv.weight": data[:, 0]}})
    # Pairs after the rotated part have the frequency 0.
    pairs = config.head_dim // 2
    turned = pairs * config.rope_parameters["full_attention"]["partial_rotary_factor"]
    return tensors | {"token_embd_norm.weight": parameters[norm], "rope_freqs.weight": np.where(np.arange(pairs) < turned, 1, 1e30)}


def axk1_keys(config):
    turned = config.qk_rope_head_dim
    return decoder_keys(config, config.num_attention_heads) | {
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": config.kv_lora_rank + turned,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + turned,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": turned,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "expert_shared_count": config.n_shared_experts,
        "expert_weights_scale": config.routed_scaling_factor,
        "expert_group_count": config.n_group,
        "expert_group_used_count": config.topk_group,
    }


def axk1_tensors(parameters, config):
    names = [*NAMES, *MLA_NAMES, (r"mlp\.post_mlp_layernorm\b", "post_ffw_norm")]
    return by_names(parameters, config, names, {"kv_b_proj.weight": absorbed})


def longcat_flash_keys(config):
    turned = config.qk_rope_head_dim
    return {
        "block_count": 2 * config.num_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.ffn_hidden_size,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": 1,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.q_lora_rank": config.q_lora_rank,
        "attention.kv_lora_rank": config.kv_lora_rank,
        "attention.key_length": config.kv_lora_rank + turned,
        "attention.value_length": config.kv_lora_rank,
        "attention.key_length_mla": config.qk_nope_head_dim + turned,
        "attention.value_length_mla": config.v_head_dim,
        "rope.dimension_count": turned,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        "expert_count": config.n_routed_experts,
        "expert_identity_count": config.zero_expert_num,
        "expert_used_count": config.moe_topk,
        "expert_feed_forward_length": config.expert_ffn_hidden_size,
        "expert_gating_func": 1,
        "expert_weights_scale": config.routed_scaling_factor,
    }


def longcat_flash_tensors(parameters, config):
    """Returns tensors of LongCat-Flash.

    One of transformers' layers is two layers here, and factors of latent rows are part of their
    norms.
    """

    def of_half(name):
        name = re.sub(r"layers\.(\d+)\.mlp\.", lambda found: f"layers.{2 * int(found[1])}.mlp.", name)
        half = r"layers\.(\d+)\.(self_attn|input_layernorm|post_attention_layernorm|mlp)s?\.([01])\."
        return re.sub(half, lambda found: f"layers.{2 * int(found[1]) + int(found[3])}.{found[2]}.", name)

    def gate_and_up_of_experts(data, *rest):
        return gate_and_up(data[: config.n_routed_experts], *rest)

    names = [
        *NAMES,
        *MLA_NAMES,
        (r"mlp\.router\.classifier\b", "ffn_gate_inp"),
        (r"mlp\.router\.e_score_correction_bias", "exp_probs_b.bias"),
    ]
    parts = {"kv_b_proj.weight": absorbed, "mlp.experts.gate_up_proj": gate_and_up_of_experts}
    tensors = by_names({of_half(name): data for name, data in parameters.items()}, config, names, parts)
    for name in [name for name in tensors if name.endswith(("attn_q_a_norm.weight", "attn_kv_a_norm.weight"))]:
        tensors[name] = tensors[name] * np.float32((config.hidden_size / len(tensors[name])) ** 0.5)
    return tensors


def olmo_hybrid_keys(config):
    attends = [kind == "full_attention" for kind in config.layer_types]
    base = (config.rope_parameters or {}).get("rope_theta")
    keys = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": [config.num_key_value_heads if attends else 0 for attends in attends],
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.scaling.finetuned": base is not None,
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
    }
    if base is not None:
        keys["rope.freq_base"] = base
    return keys | ({"ssm.beta_scale": 2.0} if config.linear_allow_neg_eigval else {})


def olmo_hybrid_tensors(parameters, config):
    def norm(data, config, layer):
        return {f"{'post_attention_norm' if config.layer_types[layer] == 'full_attention' else 'ffn_norm'}.weight": data}

    names = [
        *NAMES,
        (r"post_feedforward_layernorm\b", "post_ffw_norm"),
        (r"linear_attn\.([qkv])_proj\b", r"attn_\1"),
        (r"linear_attn\.g_proj\b", "attn_gate"),
        (r"linear_attn\.a_proj\b", "ssm_alpha"),
        (r"linear_attn\.b_proj\b", "ssm_beta"),
        (r"linear_attn\.dt_bias", "ssm_dt.bias"),
        (r"linear_attn\.o_norm\b", "ssm_norm"),
        (r"linear_attn\.o_proj\b", "ssm_out"),
    ]
    parts = {
        "post_attention_layernorm.weight": norm,
        "conv1d.weight": lambda data, *_: {"ssm_conv1d.weight": data[:, 0]},
        # In f64, so that it is rounded once.
        "A_log": lambda data, *_: {"ssm_a": -np.exp(data.astype(np.float64))},
    }
    return by_names(parameters, config, names, parts)


def nanochat_keys(config):
    return plain_keys(config) | {"final_logit_softcapping": config.final_logit_softcapping}


def nanochat_tensors(parameters, config):
    """Returns tensors of nanochat with the halves of heads swapped, because its RoPE rotates in the other direction."""
    tensors = by_names(parameters, config, [*NAMES, (r"mlp\.fc1\b", "ffn_up"), (r"mlp\.fc2\b", "ffn_down")], {})
    heads = {"attn_q.weight": config.num_attention_heads, "attn_k.weight": config.num_key_value_heads}
    for name, data in tensors.items():
        if count := heads.get(name.split(".", 2)[-1]):
            tensors[name] = data.reshape(count, 2, -1, data.shape[-1])[:, ::-1].reshape(data.shape)
    return tensors


def vaultgemma_keys(config):
    return windowed_keys(config) | {
        "attn_logit_softcapping": config.attn_logit_softcapping,
        "final_logit_softcapping": config.final_logit_softcapping,
    }


def vaultgemma_tensors(parameters, config):
    own = {name: data for name, data in parameters.items() if name != "lm_head.weight"}
    tensors = by_names(own, config, [*NAMES, (r"pre_feedforward_layernorm\b", "ffn_norm")], {})
    return {name: data + 1 if name.endswith("norm.weight") else data for name, data in tensors.items()}


def half_turned(tensors, _keys, config):
    """Reorders the rotated half of heads in Bamba's file into neighbours.

    The converter takes the pairs of a whole head.
    """
    heads = {"attn_q.weight": config.num_attention_heads, "attn_k.weight": config.num_key_value_heads}
    for name, data in tensors.items():
        if count := heads.get(name.split(".", 2)[-1]):
            rows = data.reshape(count, -1, 2, data.shape[-1]).swapaxes(1, 2).reshape(count, -1, data.shape[-1]).copy()
            turned = rows.shape[1] // 2
            rows[:, :turned] = rows[:, :turned].reshape(count, 2, -1, data.shape[-1]).swapaxes(1, 2).reshape(count, turned, -1)
            tensors[name] = rows.reshape(data.shape)


# Defaults of most models: two layers, two query heads per key head, no special tokens.
SMALL = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
# One dense layer, and one with experts.
DOTS1 = SMALL | {
    "intermediate_size": 48,
    "head_dim": 16,
    "moe_intermediate_size": 16,
    "n_shared_experts": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.7,
}
# The vision part, which is not converted.
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64, "deepstack_visual_indexes": []}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2], "mrope_interleaved": True}

# Windows are shorter than the prompt.
WINDOWS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
WINDOWED = SMALL | {"head_dim": 16, "num_hidden_layers": 4, "intermediate_size": 32, "sliding_window": 24, "layer_types": WINDOWS}
# The first layer is dense.
SPARSE = {"moe_intermediate_size": 16, "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 1}
MLP_TYPES = ["dense", "sparse", "sparse", "sparse"]


def longrope(dims, original):
    """Returns RoPE with two lists of factors. The second list applies beyond the context `original`."""
    rng = np.random.default_rng(7)
    short, long = (rng.uniform(1, most, dims // 2).round(3).tolist() for most in (2, 8))
    return {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": original,
    }


# Windows are shorter than the prompt. Heads of layers without a window are twice as long.
GEMMA4 = SMALL | {
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 24,
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    },
}

# A dense layer with full attention, and two layers with experts, whose index chooses blocks.
MINIMAX_M3 = {key: value for key, value in SMALL.items() if key != "max_position_embeddings"} | {
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "dense_intermediate_size": 48,
    "shared_intermediate_size": 16,
    "head_dim": 16,
    "rotary_dim": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "routed_scaling_factor": 1.7,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
    "index_n_heads": 2,
    "index_head_dim": 16,
    "index_block_size": 32,
    "index_local_blocks": 1,
}
# Max error for matrices in f16. It comes from keys and values in f16 (2e-8 of their squares), sums
# in f32, and pairs of bf16 on targets with tiles.
ROUNDED = 5e-8
# Max error if blocks take the stream without a norm: its values are larger than normalised ones.
UNNORMED = 2e-7
GRANITE_SWA = WINDOWED | {
    "layer_types": WINDOWS[::-1],
    "layer_rope_theta": [0, 10000.0, 10000.0, 10000.0],
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
    "attention_multiplier": 0.3,
    "tie_word_embeddings": True,
}
MAMBA = dict(
    vocab_size=64,
    hidden_size=48,
    num_hidden_layers=3,
    state_size=12,
    expand=2,
    conv_kernel=4,
    time_step_rank=5,
    use_conv_bias=True,
    layer_norm_epsilon=1e-5,
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
OLMO_HYBRID = dict(
    vocab_size=64,
    hidden_size=48,
    intermediate_size=56,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
    linear_num_key_heads=3,
    linear_num_value_heads=3,
    linear_key_head_dim=12,
    linear_value_head_dim=24,
    linear_conv_kernel_dim=4,
    max_position_embeddings=512,
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
GRANITE_HYBRID = dict(
    hidden_size=32,
    num_hidden_layers=3,
    layer_types=["mamba", "attention", "mamba"],
    num_attention_heads=2,
    num_key_value_heads=1,
    mamba_n_heads=4,
    mamba_n_groups=1,
    mamba_d_state=24,
    mamba_d_head=16,
    mamba_d_conv=4,
    mamba_expand=2,
    mamba_chunk_size=64,
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
    embedding_multiplier=3.0,
    residual_multiplier=0.5,
    attention_multiplier=0.2,
    logits_scaling=2.0,
)

NEMOTRON = dict(
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=16,
    ssm_state_size=24,
    mamba_num_heads=4,
    mamba_head_dim=16,
    conv_kernel=4,
    chunk_size=64,
    # llama.cpp has no minimum step, and this value has no effect.
    time_step_min=1e-30,
    max_position_embeddings=512,
    layer_norm_epsilon=1e-5,
    tie_word_embeddings=False,
)

# `sqrt(1 + ln(512 / 256) / ln(256))`.
PHIMOE_FACTOR = (1 + np.log(2) / np.log(256)) ** 0.5

# Queries have a temperature from position 32 on.
MISTRAL_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 4.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.3,
}


def temperature_length(_tensors, keys, config):
    """Adds the keys of Mistral 4's temperature, which the converter does not write."""
    rope = config.rope_parameters
    keys["mistral4.attention.temperature_scale"] = rope["llama_4_scaling_beta"]
    keys["mistral4.attention.temperature_length"] = rope["original_max_position_embeddings"]


def with_llama4_lengths(_tensors, keys, config):
    """Adds the keys whose values are the same in all released models."""
    keys["llama4.attention.sliding_window"] = config.attention_chunk_size
    keys["llama4.attention.temperature_scale"] = config.attn_scale
    keys["llama4.attention.temperature_length"] = config.floor_scale


LAGUNA = (
    SMALL
    | SPARSE
    | {
        "head_dim": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
        "intermediate_size": 32,
        "shared_expert_intermediate_size": 24,
        "moe_routed_scaling_factor": 1.7,
        "mlp_layer_types": MLP_TYPES[:3],
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 20000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "beta_fast": 4.0,
                "beta_slow": 1.0,
                "partial_rotary_factor": 0.5,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        },
    }
)
del LAGUNA["num_shared_experts"]


def without_windows(_tensors, keys, _config):
    """Removes the keys of layers with windows, because the file has none."""
    for key in [key for key in keys if key.endswith("_swa") or "sliding_window" in key]:
        del keys[key]


COHERE2MOE = (
    WINDOWED
    | SPARSE
    | {
        "mlp_layer_types": MLP_TYPES,
        "layer_types": ["full_attention", *WINDOWS[1:]],
        "intermediate_size": 16,
        "prefix_dense_intermediate_size": 32,
        "expert_selection_fn": "sigmoid",
        "norm_topk_prob": True,
        "logit_scale": 0.3,
        "tie_word_embeddings": True,
    }
)
del COHERE2MOE["moe_intermediate_size"]

STABLELM = SMALL | {"rope_parameters": SMALL["rope_parameters"] | {"partial_rotary_factor": 0.25}}
# Max error with an index that chooses fewer positions than most rows have. A key of the index in
# f16 could change a choice, and the error would be thousands of times larger. With these sizes and
# numbers no choice changes.
CHOSEN = 1e-7
# Max error for Hy4, for Mistral Large 4 with short heads, and for LongCat-Flash, whose latent rows
# are scaled. It comes from keys and values in f16: for Hy4, llama.cpp's error with such a cache is
# 2.4e-7.
CHOSEN_SHARPLY = 3e-7
MISTRAL_LARGE4 = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=40,
    moe_intermediate_size=16,
    num_attention_heads=4,
    num_key_value_heads=4,
    n_routed_experts=6,
    num_experts_per_tok=2,
    routed_scaling_factor=1.7,
    kv_lora_rank=24,
    qk_rope_head_dim=8,
    qk_nope_head_dim=16,
    v_head_dim=20,
    index_head_dim=12,
    index_n_heads=12,
    final_logit_softcapping=4.0,
    max_position_embeddings=512,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
INDEXED = dict(
    vocab_size=64,
    hidden_size=48,
    intermediate_size=64,
    moe_intermediate_size=16,
    num_hidden_layers=3,
    first_k_dense_replace=1,
    num_attention_heads=4,
    num_key_value_heads=4,
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_shared_experts=1,
    norm_topk_prob=True,
    routed_scaling_factor=1.7,
    q_lora_rank=24,
    kv_lora_rank=32,
    qk_rope_head_dim=8,
    qk_nope_head_dim=16,
    v_head_dim=24,
    index_topk=16,
    index_head_dim=24,
    index_n_heads=8,
    max_position_embeddings=512,
    tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)

# The prompt contains end-of-text tokens. Rows of the n-gram table stand for two and three tokens.
QWEN4EXP = dict(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=4,
    layer_types=["linear_attention", "linear_attention", "full_attention", "linear_attention"],
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    linear_conv_kernel_dim=4,
    linear_key_head_dim=16,
    linear_value_head_dim=16,
    linear_num_key_heads=2,
    linear_num_value_heads=4,
    moe_intermediate_size=16,
    shared_expert_intermediate_size=24,
    num_experts=6,
    num_experts_per_tok=2,
    norm_topk_prob=True,
    output_gate_type="sigmoid",
    hc_count=4,
    hc_lowrank=12,
    ple_layer_ids=[2],
    ple_embed_dim=32,
    ple_conv_kernel_size=4,
    ngram_size=3,
    heads_per_ngram=2,
    ngram_vocab_size_base=200,
    make_ngram_vocab_size_divisible_by=16,
    split_ngram_parts=2,
    indexer_n_heads=2,
    indexer_kv_heads=1,
    indexer_head_dim=16,
    indexer_budget=256,
    indexer_compress_ratio=4,
    max_position_embeddings=512,
    rope_parameters=SECTIONS | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
    bos_token_id=None,
    eos_token_id=5,
    pad_token_id=None,
)

GROK = FORMULA | {
    "neox": True,
    "activation": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "intermediate_size": 40,
    "embedding_scale": 6.5,
    "logit_scale": 0.4,
    "attention_scale": 0.7,
    "attention_cap": 3.0,
    "router_cap": 1.5,
    "logit_cap": 0.0,
}
GPT_NEOX = dict(
    vocab_size=64,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=160,
    max_position_embeddings=512,
    rotary_pct=0.25,
    tie_word_embeddings=False,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
NO_TOKENS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)
FALCON = dict(
    vocab_size=64,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)

GPT2 = dict(
    vocab_size=64,
    n_positions=160,
    n_embd=64,
    n_layer=2,
    n_head=4,
    n_inner=256,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)

MPT = dict(
    vocab_size=64,
    d_model=64,
    n_heads=2,
    n_layers=2,
    max_seq_len=512,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)

MODELS = {
    "granite": (
        GraniteConfig(**SMALL, embedding_multiplier=3.0, logits_scaling=2.5, residual_multiplier=0.4, attention_multiplier=0.15),
        GraniteForCausalLM,
        ROUNDED,
        None,
    ),
    "ernie4_5": (Ernie4_5Config(**SMALL, head_dim=16), Ernie4_5ForCausalLM, ROUNDED, None),
    "dots1": (Dots1Config(**DOTS1), Dots1ForCausalLM, ROUNDED, None),
    "bailingmoe2": (Dots1Config(**DOTS1 | {"n_group": 4, "topk_group": 2}), Dots1ForCausalLM, ROUNDED, ling2),
    "hunyuan-moe": (
        HunYuanMoEV1Config(
            **SMALL | {"intermediate_size": 32},
            head_dim=16,
            num_experts=4,
            moe_topk=[2, 2],
            moe_intermediate_size=[32, 32],
            num_shared_expert=[1, 1],
        ),
        HunYuanMoEV1ForCausalLM,
        ROUNDED,
        None,
    ),
    "qwen3vl": (
        Qwen3VLConfig(text_config=SMALL | {"head_dim": 16, "rope_parameters": SECTIONS}, vision_config=VISION, tie_word_embeddings=False),
        Qwen3VLForConditionalGeneration,
        ROUNDED,
        None,
    ),
    "qwen3vlmoe": (
        Qwen3VLMoeConfig(
            text_config=SMALL
            | {"head_dim": 16, "rope_parameters": SECTIONS, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
            vision_config=VISION,
            tie_word_embeddings=False,
        ),
        Qwen3VLMoeForConditionalGeneration,
        ROUNDED,
        untransposed,
    ),
    # The fourth layer has no RoPE.
    "smollm3": (SmolLM3Config(**SMALL | {"num_hidden_layers": 5, "intermediate_size": 32}), SmolLM3ForCausalLM, ROUNDED, None),
    "seed_oss": (SeedOssConfig(**SMALL, head_dim=16), SeedOssForCausalLM, ROUNDED, None),
    "phi3": (
        Phi3Config(**SMALL | {"rope_parameters": SMALL["rope_parameters"] | {"partial_rotary_factor": 0.75}}),
        Phi3ForCausalLM,
        ROUNDED,
        None,
    ),
    # The last two layers have wider networks, and no keys and values of their own.
    "gemma4-e": (
        Gemma4TextConfig(
            **GEMMA4
            | {
                "intermediate_size": 32,
                "num_hidden_layers": 6,
                "num_attention_heads": 2,
                "layer_types": ["sliding_attention", "full_attention"] * 3,
                "num_key_value_heads": 1,
                "num_kv_shared_layers": 2,
                "use_double_wide_mlp": True,
                "hidden_size_per_layer_input": 16,
                "vocab_size_per_layer_input": 64,
            }
        ),
        Gemma4ForCausalLM,
        ROUNDED,
        None,
    ),
    # Few gates are active in the first layers, and some in the third. The last two layers read keys
    # and values of other layers. Windows are shorter than the prompt.
    "gemma3n": (
        Gemma3nTextConfig(
            vocab_size=64,
            vocab_size_per_layer_input=64,
            hidden_size=32,
            hidden_size_per_layer_input=8,
            intermediate_size=[48, 48, 40, 40, 48, 48],
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"] * 2,
            sliding_window=24,
            num_kv_shared_layers=2,
            laurel_rank=12,
            altup_num_inputs=4,
            altup_active_idx=1,
            activation_sparsity_pattern=[0.95, 0.95, 0.4, 0.0, 0.0, 0.0],
            max_position_embeddings=512,
            final_logit_softcapping=30.0,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        Gemma3nForCausalLM,
        # Scores are not scaled. Gates near the threshold keep little except rounding errors.
        4 * ROUNDED,
        None,
    ),
    "gemma4-moe": (
        Gemma4TextConfig(
            **GEMMA4
            | {
                "intermediate_size": 48,
                "layer_types": ["sliding_attention", "full_attention"],
                "hidden_size_per_layer_input": 0,
                "attention_k_eq_v": True,
                "num_global_key_value_heads": 1,
                "enable_moe_block": True,
                "num_experts": 6,
                "top_k_experts": 2,
                "moe_intermediate_size": 32,
            }
        ),
        Gemma4ForCausalLM,
        ROUNDED,
        None,
    ),
    "qwen35": (
        Qwen3_5TextConfig(
            vocab_size=96,
            hidden_size=64,
            intermediate_size=80,
            num_hidden_layers=3,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            linear_num_key_heads=2,
            linear_num_value_heads=6,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_conv_kernel_dim=4,
            max_position_embeddings=512,
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        ),
        Qwen3_5ForCausalLM,
        ROUNDED,
        None,
    ),
    "qwen3next-ssm_in": (
        Qwen3NextConfig(
            vocab_size=80,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            layer_types=["linear_attention", "full_attention"],
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            linear_num_key_heads=2,
            linear_num_value_heads=6,
            linear_key_head_dim=16,
            linear_value_head_dim=16,
            linear_conv_kernel_dim=4,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            max_position_embeddings=512,
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        ),
        Qwen3NextForCausalLM,
        ROUNDED,
        fused_by_key_head,
    ),
    "lfm2": (
        Lfm2Config(
            vocab_size=88,
            hidden_size=48,
            intermediate_size=80,
            block_auto_adjust_ff_dim=False,
            num_hidden_layers=4,
            layer_types=["conv", "full_attention", "conv", "conv"],
            num_attention_heads=3,
            num_key_value_heads=1,
            conv_L_cache=3,
            max_position_embeddings=512,
            norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        Lfm2ForCausalLM,
        1e-8,
        None,
    ),
    "lfm2moe": (
        Lfm2MoeConfig(
            vocab_size=80,
            hidden_size=32,
            intermediate_size=48,
            moe_intermediate_size=24,
            num_hidden_layers=4,
            layer_types=["conv", "conv", "full_attention", "conv"],
            num_attention_heads=2,
            num_key_value_heads=1,
            conv_L_cache=3,
            num_dense_layers=1,
            num_experts=8,
            num_experts_per_tok=3,
            max_position_embeddings=512,
            norm_eps=1e-5,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        ),
        Lfm2MoeForCausalLM,
        1e-8,
        None,
    ),
    "granitehybrid": (
        GraniteMoeHybridConfig(
            **GRANITE_HYBRID,
            vocab_size=96,
            intermediate_size=80,
            shared_intermediate_size=80,
            num_local_experts=0,
            num_experts_per_tok=0,
            position_embedding_type=None,
            tie_word_embeddings=True,
        ),
        GraniteMoeHybridForCausalLM,
        1e-8,
        None,
    ),
    "granitehybrid-moe": (
        GraniteMoeHybridConfig(
            **GRANITE_HYBRID,
            vocab_size=64,
            intermediate_size=24,
            shared_intermediate_size=40,
            num_local_experts=8,
            num_experts_per_tok=3,
            position_embedding_type=None,
            tie_word_embeddings=False,
        ),
        GraniteMoeHybridForCausalLM,
        1e-8,
        None,
    ),
    "nemotron_h": (
        NemotronHConfig(
            **NEMOTRON,
            vocab_size=96,
            n_groups=2,
            layers_block_type=["mamba", "mlp", "attention", "mlp", "mamba"],
            intermediate_size=80,
        ),
        NemotronHForCausalLM,
        1e-8,
        None,
    ),
    "nemotron_h_moe": (
        NemotronHConfig(
            **NEMOTRON,
            vocab_size=64,
            n_groups=4,
            layers_block_type=["mamba", "moe", "attention", "moe", "mamba"],
            intermediate_size=40,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            moe_shared_expert_intermediate_size=40,
            moe_latent_size=16,
            routed_scaling_factor=2.5,
        ),
        NemotronHForCausalLM,
        1e-8,
        None,
    ),
    # Windows and entries of both kinds are completed several times. A token sees all entries, since
    # `top_k` is as large as their number. Clamps have an effect.
    "deepseek4": (
        DeepseekV4Config(
            vocab_size=64,
            hidden_size=32,
            moe_intermediate_size=16,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=1,
            head_dim=16,
            q_lora_rank=24,
            num_experts_per_tok=2,
            n_routed_experts=6,
            n_shared_experts=1,
            routed_scaling_factor=1.5,
            max_position_embeddings=512,
            layer_types=[
                "sliding_attention",
                "heavily_compressed_attention",
                "compressed_sparse_attention",
                "heavily_compressed_attention",
            ],
            compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 16},
            compress_rope_theta=160000.0,
            hc_mult=4,
            hc_sinkhorn_iters=5,
            hc_eps=1e-3,
            mlp_layer_types=["hash_moe", "moe", "moe", "moe"],
            swiglu_limit=1.0,
            sliding_window=20,
            o_groups=2,
            o_lora_rank=12,
            index_n_heads=2,
            index_head_dim=8,
            index_topk=64,
            partial_rotary_factor=0.5,
            rms_norm_eps=1e-5,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
            rope_parameters={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
            },
        ),
        DeepseekV4ForCausalLM,
        # Keys in f16 are also values in four layers, and so are their means.
        2 * ROUNDED,
        ByHand(deepseek4_keys, deepseek4_tensors, single=["_ape.", "hc_"]),
    ),
    # Context and prompt are longer than the training context. Heads are partly rotated.
    "phi3-longrope": (
        Phi3Config(**SMALL | {"rope_parameters": longrope(12, 64) | {"partial_rotary_factor": 0.75}}),
        Phi3ForCausalLM,
        ROUNDED,
        None,
    ),
    # Context and prompt are longer than `original_max_position_embeddings`.
    "phi3-longrope-far": (
        Phi3Config(**SMALL | {"rope_parameters": longrope(12, 64) | {"partial_rotary_factor": 0.75}}, original_max_position_embeddings=64),
        Phi3ForCausalLM,
        ROUNDED,
        None,
    ),
    # The prompt is shorter than the training context.
    "phimoe": (
        PhimoeConfig(
            **SMALL
            | {
                "intermediate_size": 24,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "attention_bias": True,
                "lm_head_bias": True,
                "rope_parameters": longrope(16, 256) | {"short_mscale": PHIMOE_FACTOR, "long_mscale": PHIMOE_FACTOR},
            }
        ),
        PhimoeForCausalLM,
        ROUNDED,
        None,
    ),
    # The factor of queries grows from position 32 on.
    "mistral3": (
        Ministral3Config(
            **SMALL
            | {
                "head_dim": 16,
                "rope_parameters": MISTRAL_ROPE,
            }
        ),
        Ministral3ForCausalLM,
        ROUNDED,
        None,
    ),
    # Like deepseek2, with normalised weights and a temperature; half of a key is rotated.
    "mistral4": (
        Mistral4Config(
            **SMALL
            | {
                "num_hidden_layers": 2,
                "moe_intermediate_size": 16,
                "n_shared_experts": 1,
                "n_routed_experts": 6,
                "num_experts_per_tok": 2,
                "num_key_value_heads": 4,
                "kv_lora_rank": 32,
                "q_lora_rank": 24,
                "qk_rope_head_dim": 16,
                "qk_nope_head_dim": 16,
                "v_head_dim": 24,
                "routed_scaling_factor": 1.7,
                "rope_parameters": MISTRAL_ROPE | {"partial_rotary_factor": 0.5},
            }
        ),
        Mistral4ForCausalLM,
        ROUNDED,
        temperature_length,
    ),
    # Chunks are shorter than the prompt. Every other layer has experts.
    "llama4": (
        Llama4TextConfig(
            **SMALL
            | {
                "head_dim": 16,
                "num_hidden_layers": 4,
                "intermediate_size": 24,
                "intermediate_size_mlp": 48,
                "num_local_experts": 4,
                "num_experts_per_tok": 1,
                "interleave_moe_layer_step": 2,
                "moe_layers": [1, 3],
                "attention_chunk_size": 64,
                "floor_scale": 16,
                "attn_scale": 0.3,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 10000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            }
        ),
        Llama4ForCausalLM,
        ROUNDED,
        with_llama4_lengths,
    ),
    # The ramp of YaRN begins and ends between pairs.
    "gpt-oss": (
        GptOssConfig(
            **SMALL
            | {
                "head_dim": 32,
                "intermediate_size": 32,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "sliding_window": 24,
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 8.0,
                    "original_max_position_embeddings": 32,
                    "beta_fast": 2.0,
                    "beta_slow": 0.2,
                    "truncate": False,
                },
            }
        ),
        GptOssForCausalLM,
        ROUNDED,
        None,
    ),
    "gemma": (GemmaConfig(**SMALL | {"head_dim": 24, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}), GemmaForCausalLM, ROUNDED, None),
    # Soft caps change scores clearly.
    "gemma2": (
        Gemma2Config(
            **SMALL
            | {
                "head_dim": 24,
                "num_hidden_layers": 4,
                "intermediate_size": 48,
                "sliding_window": 24,
                "query_pre_attn_scalar": 24,
                "attn_logit_softcapping": 2.0,
                "final_logit_softcapping": 30.0,
                "hidden_activation": "gelu_pytorch_tanh",
                "tie_word_embeddings": True,
            },
            attn_implementation="eager",
        ),
        Gemma2ForCausalLM,
        ROUNDED,
        None,
    ),
    "exaone-moe": (
        ExaoneMoeConfig(**WINDOWED | SPARSE, mlp_layer_types=MLP_TYPES, first_k_dense_replace=1, routed_scaling_factor=1.7),
        ExaoneMoeForCausalLM,
        ROUNDED,
        None,
    ),
    "exaone4": (Exaone4Config(**WINDOWED | {"sliding_window_pattern": 4}), Exaone4ForCausalLM, UNNORMED, None),
    "afmoe": (AfmoeConfig(**WINDOWED | SPARSE | {"num_experts": 4}, num_dense_layers=1, mup_enabled=True, route_scale=1.7), AfmoeForCausalLM, ROUNDED, None),
    "hy_v3": (
        HYV3Config(
            **SMALL | SPARSE | {"head_dim": 16, "num_hidden_layers": 3, "intermediate_size": 32},
            mlp_layer_types=MLP_TYPES[:3],
            router_scaling_factor=1.7,
        ),
        HYV3ForCausalLM,
        ROUNDED,
        None,
    ),
    "mamba": (MambaConfig(**MAMBA), MambaForCausalLM, 1e-8, None),
    # The inputs of steps, keys and queries are normalised.
    "mamba-normed": (FalconMambaConfig(**MAMBA), FalconMambaForCausalLM, 1e-8, None),
    # The second layer is attention. Every other network has experts.
    "jamba": (
        JambaConfig(
            **SMALL
            | {"hidden_size": 48, "intermediate_size": 24, "num_hidden_layers": 4},
            num_experts=6,
            num_experts_per_tok=2,
            attn_layer_period=3,
            attn_layer_offset=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            mamba_d_state=12,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=5,
            use_mamba_kernels=False,
        ),
        JambaForCausalLM,
        ROUNDED,
        None,
    ),
    # Layers with a window have more heads, and RoPE of whole heads.
    "laguna": (
        LagunaConfig(**LAGUNA, num_attention_heads_per_layer=[2, 4, 4], sliding_window=24, gating="per-head"),
        LagunaForCausalLM,
        ROUNDED,
        None,
    ),
    "laguna-full": (
        LagunaConfig(**LAGUNA | {"layer_types": ["full_attention"] * 3}, gating="per-element"),
        LagunaForCausalLM,
        ROUNDED,
        without_windows,
    ),
    "cohere2": (Cohere2Config(**WINDOWED | {"logit_scale": 0.3, "tie_word_embeddings": True}), Cohere2ForCausalLM, ROUNDED, None),
    "cohere2moe": (Cohere2MoeConfig(**COHERE2MOE), Cohere2MoeForCausalLM, ROUNDED, None),
    "cohere2moe-rms": (Cohere2MoeConfig(**COHERE2MOE | {"rms_norm_eps": 1e-5}), Cohere2MoeForCausalLM, ROUNDED, None),
    "command-r": (
        CohereConfig(**SMALL | {"logit_scale": 0.3, "use_qk_norm": True, "tie_word_embeddings": True}),
        CohereForCausalLM,
        ROUNDED,
        None,
    ),
    "glm4": (
        Glm4Config(
            **SMALL | {"head_dim": 16, "attention_bias": True, "rope_parameters": SMALL["rope_parameters"] | {"partial_rotary_factor": 0.5}}
        ),
        Glm4ForCausalLM,
        ROUNDED,
        None,
    ),
    "chatglm": (
        GlmConfig(
            **SMALL | {"head_dim": 16, "attention_bias": True, "rope_parameters": SMALL["rope_parameters"] | {"partial_rotary_factor": 0.5}}
        ),
        GlmForCausalLM,
        ROUNDED,
        # The converter writes another context length.
        renamed("chatglm", context_length=512),
    ),
    "olmo2": (Olmo2Config(**SMALL), Olmo2ForCausalLM, UNNORMED, None),
    "olmo2-windows": (
        Olmo3Config(
            **WINDOWED
            | {
                "rope_parameters": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 32,
                    "beta_fast": 32.0,
                    "beta_slow": 1.0,
                    "attention_factor": 1.2,
                }
            }
        ),
        Olmo3ForCausalLM,
        UNNORMED,
        None,
    ),
    "stablelm": (StableLmConfig(**STABLELM | {"use_qkv_bias": True}), StableLmForCausalLM, ROUNDED, None),
    "stablelm-parallel": (StableLmConfig(**STABLELM | {"qk_layernorm": True, "use_parallel_residual": True}), StableLmForCausalLM, ROUNDED, None),
    "phi2": (
        PhiConfig(**SMALL | {"num_key_value_heads": 4, "intermediate_size": 256, "hidden_act": "gelu_new", "rope_parameters": SMALL["rope_parameters"] | {"partial_rotary_factor": 0.5}}),
        PhiForCausalLM,
        ROUNDED,
        None,
    ),
    "starcoder2": (Starcoder2Config(**SMALL, use_bias=True, sliding_window=None), Starcoder2ForCausalLM, ROUNDED, None),
    "nemotron": (
        NemotronConfig(**SMALL | {"rope_parameters": SMALL["rope_parameters"] | {"partial_rotary_factor": 0.5}}),
        NemotronForCausalLM,
        # The weights of norms are about 2, since 1 is added to the random numbers. Scores are four
        # times as large as in other models, and the rounding of keys is in an exponent.
        1e-6,
        None,
    ),
    "apertus": (
        ApertusConfig(
            **SMALL
            | {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 12000000.0,
                    "factor": 8.0,
                    "original_max_position_embeddings": 64,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                }
            }
        ),
        ApertusForCausalLM,
        ROUNDED,
        None,
    ),
    "arcee": (ArceeConfig(**SMALL), ArceeForCausalLM, ROUNDED, None),
    "hunyuan-dense": (HunYuanDenseV1Config(**SMALL, head_dim=16), HunYuanDenseV1ForCausalLM, ROUNDED, None),
    # The first layer has full attention without RoPE.
    "granite_swa": (GraniteSWAConfig(**GRANITE_SWA), GraniteSWAForCausalLM, ROUNDED, None),
    "granite_swa-moe": (
        GraniteMoeSWAConfig(
            **GRANITE_SWA | {"intermediate_size": 16},
            shared_intermediate_size=24,
            num_local_experts=5,
            num_experts_per_tok=3,
        ),
        GraniteMoeSWAForCausalLM,
        ROUNDED,
        None,
    ),
    # The last layer has full attention with scaled positions.
    "mellum": (
        MellumConfig(
            **WINDOWED
            | {
                "rope_parameters": {
                    "full_attention": {
                        "rope_type": "yarn",
                        "rope_theta": 500000.0,
                        "factor": 4.0,
                        "original_max_position_embeddings": 32,
                        "beta_fast": 32.0,
                        "beta_slow": 1.0,
                    },
                    "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
                }
            },
            moe_intermediate_size=16,
            num_experts=6,
            num_experts_per_tok=3,
        ),
        MellumForCausalLM,
        ROUNDED,
        None,
    ),
    # The file is that of Granite, with the values that MiniCPM's files have no keys for.
    "minicpm": (
        GraniteConfig(
            **SMALL,
            embedding_multiplier=12.0,
            residual_multiplier=1.4 / 2**0.5,
            logits_scaling=64 / 256,
            attention_multiplier=0.25,
        ),
        GraniteForCausalLM,
        ROUNDED,
        renamed("minicpm", embedding_scale=None, residual_scale=None, logit_scale=None, **{"attention.scale": None}),
    ),
    # Norms of latent attention have another epsilon than the others. RoPE uses the first of two
    # lists of factors.
    "minicpm3": (
        MiniCPM3Config(
            **SMALL
            | {
                "num_key_value_heads": 4,
                "rms_norm_eps": 1e-3,
                "rope_parameters": longrope(8, 512),
            },
            q_lora_rank=24,
            kv_lora_rank=32,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            scale_emb=12,
            scale_depth=1.4,
            dim_model_base=256,
        ),
        MiniCPM3ForCausalLM,
        ROUNDED,
        None,
    ),
    # Every other layer is attention.
    "minimax-01": (
        MiniMaxConfig(
            **SMALL
            | {
                "hidden_size": 48,
                "intermediate_size": 16,
                "num_hidden_layers": 4,
                "layer_types": ["linear_attention", "full_attention"] * 2,
            },
            head_dim=16,
            num_local_experts=6,
            num_experts_per_tok=2,
            block_size=32,
            full_attn_alpha_factor=3.5,
            linear_attn_alpha_factor=3.5,
            mlp_alpha_factor=3.5,
        ),
        MiniMaxForCausalLM,
        ROUNDED,
        attends_every_second,
    ),
    # The first and the last layer have full attention without RoPE. Half of the gates are 0.
    "smallthinker": (
        Formula(**FORMULA | {"num_hidden_layers": 5, "windows": [0, 24, 24, 24, 0], "neox": True, "sigmoid": True, "activation": torch.nn.functional.relu}),
        SparseForCausalLM,
        ROUNDED,
        ByHand(formula_keys, formula_tensors, single=["ffn_gate_inp"]),
    ),
    # Experts run in parallel with a dense network, on the input of attention.
    "arctic": (
        Formula(**FORMULA | {"num_hidden_layers": 2, "beside": True}),
        SparseForCausalLM,
        ROUNDED,
        ByHand(formula_keys, formula_tensors, single=["ffn_gate_inp"]),
    ),
    # Files of InternLM 2 are those of Llama.
    "internlm2": (LlamaConfig(**SMALL), LlamaForCausalLM, ROUNDED, renamed("internlm2")),
    "deepseek": (
        LlamaConfig(
            **SMALL
            | {
                "intermediate_size": 48,
                "moe_intermediate_size": 16,
                "n_shared_experts": 2,
                "n_routed_experts": 6,
                "num_experts_per_tok": 3,
                "first_k_dense_replace": 1,
                "scoring_func": "softmax",
            }
        ),
        DeepseekForCausalLM,
        ROUNDED,
        None,
    ),
    "deepseek2-kv_b": (
        DeepseekV2Config(
            **SMALL
            | {
                "intermediate_size": 48,
                "moe_intermediate_size": 16,
                "n_shared_experts": 1,
                "n_routed_experts": 6,
                "num_experts_per_tok": 2,
                "num_key_value_heads": 4,
                "kv_lora_rank": 32,
                "q_lora_rank": 24,
                "qk_rope_head_dim": 8,
                "qk_nope_head_dim": 16,
                "v_head_dim": 24,
                "first_k_dense_replace": 1,
                "routed_scaling_factor": 1.7,
                "topk_method": "greedy",
            }
        ),
        DeepseekV2ForCausalLM,
        ROUNDED,
        keys_and_values_of_all_heads,
    ),
    # Experts are chosen from the groups with the best single score (`group_limited_greedy`).
    "deepseek2-groups": (
        DeepseekV2Config(
            **SMALL
            | {
                "intermediate_size": 48,
                "moe_intermediate_size": 16,
                "n_shared_experts": 1,
                "n_routed_experts": 12,
                "num_experts_per_tok": 3,
                "num_key_value_heads": 4,
                "kv_lora_rank": 32,
                "q_lora_rank": 24,
                "qk_rope_head_dim": 8,
                "qk_nope_head_dim": 16,
                "v_head_dim": 24,
                "first_k_dense_replace": 1,
                "routed_scaling_factor": 1.7,
                "topk_method": "group_limited_greedy",
                "n_group": 4,
                "topk_group": 2,
            }
        ),
        DeepseekV2ForCausalLM,
        ROUNDED,
        None,
    ),
    # The first layer is dense. Two layers have a decay per key element.
    "kimi-linear": (
        KimiLinearConfig(
            vocab_size=64,
            hidden_size=48,
            intermediate_size=64,
            moe_intermediate_size=16,
            num_hidden_layers=3,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            num_attention_heads=4,
            num_key_value_heads=4,
            n_shared_experts=1,
            num_local_experts=8,
            num_experts_per_tok=3,
            routed_scaling_factor=2.446,
            kv_lora_rank=32,
            q_lora_rank=None,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=24,
            linear_head_dim=16,
            linear_num_heads=4,
            linear_conv_kernel_dim=4,
            max_position_embeddings=512,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        KimiLinearForCausalLM,
        ROUNDED,
        None,
    ),
    "deepseek32": (DeepseekV32Config(**INDEXED, n_group=4, topk_group=2), DeepseekV32ForCausalLM, CHOSEN, None),
    # The second layer uses the positions that the first one chose.
    "glm-dsa": (
        GlmMoeDsaConfig(**INDEXED, n_group=1, topk_group=1, indexer_types=["full", "shared", "full"]),
        GlmMoeDsaForCausalLM,
        CHOSEN,
        None,
    ),
    # All blocks of the context are chosen.
    "minimax-m3": (
        MiniMaxM3VLTextConfig(**MINIMAX_M3, max_position_embeddings=160, index_topk_blocks=5),
        MiniMaxM3VLForCausalLM,
        ROUNDED,
        None,
    ),
    # Each key head has the row's own block, and one earlier block.
    "minimax-m3-chosen": (
        MiniMaxM3VLTextConfig(**MINIMAX_M3, max_position_embeddings=512, index_topk_blocks=2),
        MiniMaxM3VLForCausalLM,
        CHOSEN,
        None,
    ),
    # Layers with a window have sinks and twice as many key heads. Values are shorter than keys.
    "mimo2": (
        MiMoV2FlashConfig(
            **SMALL
            | {
                "num_hidden_layers": 4,
                "num_key_value_heads": 1,
                "intermediate_size": 48,
                "rope_parameters": {
                    "full_attention": {"rope_type": "default", "rope_theta": 500000.0, "partial_rotary_factor": 0.5},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
                },
            },
            head_dim=24,
            v_head_dim=16,
            moe_intermediate_size=16,
            n_routed_experts=6,
            num_experts_per_tok=3,
            sliding_window=33,
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
            attention_value_scale=0.75,
        ),
        MiMoV2FlashForCausalLM,
        ROUNDED,
        None,
    ),
    # Factors are powers of two, because the converter multiplies matrices with them.
    "falcon-h1": (
        FalconH1Config(
            vocab_size=64,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            mamba_d_ssm=96,
            mamba_n_heads=6,
            mamba_d_head=16,
            mamba_n_groups=2,
            mamba_d_state=24,
            mamba_d_conv=4,
            mamba_chunk_size=64,
            mamba_conv_bias=True,
            mamba_rms_norm=True,
            mamba_norm_before_gate=False,
            time_step_limit=[0.0, float("inf")],
            max_position_embeddings=512,
            tie_word_embeddings=False,
            lm_head_multiplier=0.5,
            embedding_multiplier=2.0,
            mlp_multipliers=[0.5, 2.0],
            key_multiplier=0.5,
            attention_in_multiplier=2.0,
            attention_out_multiplier=0.5,
            ssm_multipliers=[2.0, 0.5, 1.0, 2.0, 0.5],
            ssm_in_multiplier=0.5,
            ssm_out_multiplier=2.0,
            rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        FalconH1ForCausalLM,
        ROUNDED,
        None,
    ),
    "mamba2": (
        Mamba2Config(
            vocab_size=64,
            hidden_size=48,
            num_hidden_layers=3,
            num_heads=6,
            head_dim=16,
            expand=2,
            state_size=24,
            n_groups=1,
            conv_kernel=4,
            chunk_size=64,
            use_conv_bias=True,
            layer_norm_epsilon=1e-5,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        Mamba2ForCausalLM,
        1e-8,
        None,
    ),
    # Layers with a window have more heads, and RoPE of whole heads. Limits cut gates and up, also
    # in the dense layer.
    "step35": (
        Step3p7TextConfig(
            **SMALL
            | {
                "pad_token_id": 1,
                "num_hidden_layers": 4,
                "intermediate_size": 32,
                "rope_parameters": {
                    "full_attention": {
                        "rope_type": "llama3",
                        "rope_theta": 500000.0,
                        "partial_rotary_factor": 0.5,
                        "factor": 4.0,
                        "low_freq_factor": 1.0,
                        "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 64,
                    },
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
                },
            },
            head_dim=16,
            num_sliding_attention_heads=6,
            sliding_window=33,
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            mlp_layer_types=MLP_TYPES,
            moe_intermediate_size=16,
            n_routed_experts=6,
            num_experts_per_tok=3,
            share_expert_dim=24,
            moe_router_scaling_factor=1.7,
            swiglu_limits=[0.0, 0.0, 0.4, 0.3],
            swiglu_limits_shared=[0.5, 0.6, 0.0, 0.3],
        ),
        Step35ForCausalLM,
        ROUNDED,
        ByHand(step35_keys, step35_tensors),
    ),
    # Every other layer uses the choice of the previous one. Fewer positions are chosen than there
    # are.
    "hy_v4": (
        HYV4Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=40,
            moe_intermediate_size=16,
            num_hidden_layers=4,
            num_attention_heads=4,
            n_routed_experts=6,
            num_experts_per_tok=2,
            n_shared_experts=1,
            routed_scaling_factor=1.7,
            q_lora_rank=24,
            kv_lora_rank=32,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=24,
            indexer_types=["full", "shared", "full", "shared"],
            index_topk=16,
            index_head_dim=24,
            index_n_heads=8,
            hc_mult=4,
            hc_magnitude=1.5,
            hc_eps=1e-3,
            swiglu_limit=0.8,
            max_position_embeddings=512,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        HYV4ForCausalLM,
        CHOSEN_SHARPLY,
        neighbours_turn,
    ),
    # Layers with a window have fewer heads, of another length, and longer rows.
    "dots3note": (
        Dots3NoteTextConfig(
            vocab_size=64,
            hidden_size=48,
            intermediate_size=40,
            moe_intermediate_size=16,
            shared_experts_intermediate_size=16,
            num_hidden_layers=4,
            layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            first_k_dense_replace=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            n_routed_experts=6,
            num_experts_per_tok=2,
            n_shared_experts=1,
            routed_scaling_factor=1.7,
            q_lora_rank=16,
            kv_lora_rank=32,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=24,
            index_topk=18,
            index_head_dim=64,
            index_n_heads=8,
            sliding_window=24,
            swa_num_attention_heads=3,
            swa_num_key_value_heads=3,
            swa_q_lora_rank=16,
            swa_kv_lora_rank=40,
            swa_head_dim=20,
            swa_qk_nope_head_dim=12,
            swa_v_head_dim=20,
            max_position_embeddings=512,
            rope_parameters={
                "indexed_attention": {"rope_type": "default", "rope_theta": 20000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        Dots3NoteForCausalLM,
        CHOSEN,
        None,
    ),
    # Every kind of layer occurs: with and without RoPE, with latent rows, with an own choice and
    # with that of an earlier layer. With these heads, no score at the edge of a choice is 0, and no
    # two are closer than the error of keys in f16.
    "mistral-large4": (
        MistralLarge4TextConfig(
            **MISTRAL_LARGE4,
            num_hidden_layers=5,
            first_k_dense_replace=1,
            n_group=3,
            topk_group=2,
            indexer_types=["full", "shared", "full", "full", "shared"],
            no_rope_layers=[1, 1, 0, 1, 0],
            kv_source_layers=[0, 1, 2, 1, 2],
            index_topk=18,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "attention_factor": 1.0,
            },
        ),
        MistralLarge4ForCausalLM,
        CHOSEN_SHARPLY,
        ByHand(mistral_large4_keys, mistral_large4_tensors, single=["ffn_gate_inp", "indexer.proj"], architecture="mistral-large4"),
    ),
    # Other first layers, a wider shared expert, more chosen positions, and unscaled positions.
    "mistral-large4-own": (
        MistralLarge4TextConfig(
            **MISTRAL_LARGE4,
            num_hidden_layers=4,
            first_k_dense_replace=2,
            n_shared_experts=2,
            n_group=1,
            topk_group=1,
            index_topk=34,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
        MistralLarge4ForCausalLM,
        CHOSEN,
        ByHand(mistral_large4_keys, mistral_large4_tensors, single=["ffn_gate_inp", "indexer.proj"], architecture="mistral-large4"),
    ),
    # For most rows, the index chooses fewer positions than there are, in blocks of four.
    "glm5-next": (
        Glm5NextTextConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=40,
            moe_intermediate_size=16,
            num_hidden_layers=4,
            layer_types=["linear_attention", "full_attention", "full_attention", "linear_attention"],
            indexer_types=["full", "full", "shared", "full"],
            mlp_layer_types=["dense", "sparse", "sparse", "sparse"],
            num_attention_heads=4,
            num_key_value_heads=4,
            n_shared_experts=1,
            n_routed_experts=5,
            num_experts_per_tok=2,
            routed_scaling_factor=1.7,
            q_lora_rank=24,
            kv_lora_rank=32,
            qk_rope_head_dim=0,
            qk_nope_head_dim=16,
            v_head_dim=24,
            linear_head_dim=16,
            linear_num_heads=4,
            linear_conv_kernel_dim=4,
            linear_lower_bound=-5.0,
            swiglu_limit=0.8,
            hc_mult=4,
            hc_sinkhorn_iters=5,
            hc_eps=1e-3,
            index_topk=32,
            index_head_dim=20,
            index_n_heads=8,
            index_kpool=4,
            max_position_embeddings=512,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        Glm5NextForCausalLM,
        CHOSEN,
        ByHand(glm5_next_keys, glm5_next_tensors, single=["ssm_conv1d", "indexer_compressor_", "hc_"], architecture="glm5-next"),
    ),
    "bailingmoe3": (
        BailingHybridConfig(
            vocab_size=64,
            hidden_size=48,
            intermediate_size=64,
            moe_intermediate_size=16,
            num_hidden_layers=3,
            layer_types=["linear_attention", "full_attention", "linear_attention"],
            first_k_dense_replace=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            num_local_experts=8,
            num_experts_per_tok=3,
            n_shared_experts=1,
            n_group=4,
            topk_group=2,
            routed_scaling_factor=1.7,
            q_lora_rank=24,
            kv_lora_rank=32,
            qk_rope_head_dim=8,
            qk_nope_head_dim=16,
            v_head_dim=24,
            head_dim=16,
            max_position_embeddings=512,
            rope_theta=10000.0,
            num_mtp_layers=0,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        BailingHybridForCausalLM,
        ROUNDED,
        ByHand(bailingmoe3_keys, bailingmoe3_tensors, single=["ssm_conv1d", "ssm_a"]),
    ),
    # The index of the first model chooses all positions. That of the second chooses fewer for most
    # rows, in blocks of four.
    "qwen4exp": (Qwen4ExpTextConfig(**QWEN4EXP), Qwen4ExpForCausalLM, ROUNDED, None),
    "qwen4exp-chosen": (Qwen4ExpTextConfig(**QWEN4EXP | {"indexer_budget": 32}), Qwen4ExpForCausalLM, CHOSEN, None),
    "qwen2vl": (
        Qwen2_5_VLConfig(
            text_config=SMALL | {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}},
            vision_config={"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64},
            tie_word_embeddings=False,
        ),
        Qwen2_5_VLForConditionalGeneration,
        ROUNDED,
        None,
    ),
    # Norms after blocks have a smaller epsilon than others.
    "muse-glimmer": (
        MuseGlimmerConfig(
            text_config=WINDOWED
            | {
                "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
                "layer_rope_theta": None,
                "rms_norm_eps": 1e-2,
                "post_norm_eps": 1e-8,
                "qk_scale_factor": 1.25,
                "output_multiplier": 0.25,
                "final_logit_softcapping": 3.0,
            },
            vision_config={"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2},
        ),
        MuseGlimmerForConditionalGeneration,
        # Queries have a factor, so scores and the effect of rounded keys are larger than in other
        # models.
        1e-6,
        None,
    ),
    "exaone": (LlamaConfig(**SMALL), LlamaForCausalLM, ROUNDED, ByHand(plain_keys, plain_tensors)),
    # The output of attention has a bias, like queries, keys and values.
    "pangu-embedded": (LlamaConfig(**SMALL, attention_bias=True), LlamaForCausalLM, ROUNDED, ByHand(plain_keys, plain_tensors, architecture="pangu-embedded")),
    "xverse": (LlamaConfig(**SMALL), LlamaForCausalLM, ROUNDED, renamed("xverse")),
    "orion": (LlamaConfig(**SMALL), LayerNormed, ROUNDED, ByHand(orion_keys, plain_tensors)),
    "jais2": (Jais2Config(**SMALL), Jais2ForCausalLM, ROUNDED, None),
    "maincoder": (HunYuanDenseV1Config(**SMALL, head_dim=16), HunYuanDenseV1ForCausalLM, ROUNDED, ByHand(plain_keys, maincoder_tensors)),
    # Like deepseek, with normalised weights.
    "bailingmoe": (
        LlamaConfig(
            **SMALL
            | {
                "intermediate_size": 48,
                "moe_intermediate_size": 16,
                "n_shared_experts": 2,
                "n_routed_experts": 6,
                "num_experts_per_tok": 3,
                "first_k_dense_replace": 0,
                "scoring_func": "softmax",
                "norm_topk_prob": True,
            }
        ),
        DeepseekForCausalLM,
        ROUNDED,
        renamed("bailingmoe", expert_weights_norm=True, expert_gating_func=None),
    ),
    # Five layers: complete, with a matrix in place of attention, without attention, without a
    # network, and empty.
    "deci": (
        LlamaConfig(
            **SMALL
            | {
                "hidden_size": 32,
                "num_hidden_layers": 6,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
                # The model's code makes no smaller width.
                "intermediate_size": 256,
                "parts": [["attention", True], ["linear", True], ["none", True], ["attention", False], ["none", False], ["attention", True]],
            }
        ),
        FewerParts,
        ROUNDED,
        ByHand(deci_keys, deci_tensors),
    ),
    "cwm": (
        CwmConfig(
            **WINDOWED
            | {
                "bos_token_id": 1,
                "layer_types": ["full_attention", *WINDOWS[:3]],
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 10000.0,
                    "factor": 4.0,
                    "original_max_position_embeddings": 64,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                },
            }
        ),
        CwmForCausalLM,
        ROUNDED,
        ByHand(windowed_keys, cwm_tensors),
    ),
    "hyperclovax": (
        HyperCLOVAXConfig(
            **SMALL, head_dim=16, attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.7, logits_scaling=0.4
        ),
        HyperCLOVAXForCausalLM,
        ROUNDED,
        ByHand(hyperclovax_keys, hyperclovax_tensors),
    ),
    "axk1": (
        AXK1Config(
            **SMALL
            | {
                "num_hidden_layers": 3,
                "intermediate_size": 48,
                "moe_intermediate_size": 16,
                "n_shared_experts": 1,
                "n_routed_experts": 8,
                "n_group": 4,
                "topk_group": 2,
                "num_experts_per_tok": 3,
                "num_key_value_heads": 4,
                "kv_lora_rank": 32,
                "q_lora_rank": 24,
                "qk_rope_head_dim": 8,
                "qk_nope_head_dim": 16,
                "v_head_dim": 24,
                "routed_scaling_factor": 1.7,
                "mlp_layer_types": MLP_TYPES[:3],
            }
        ),
        AXK1ForCausalLM,
        ROUNDED,
        ByHand(axk1_keys, axk1_tensors),
    ),
    "flint": (
        FlintConfig(
            **WINDOWED
            | {
                "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
                "moe_intermediate_size": 16,
                "num_experts": 6,
                "num_experts_per_tok": 2,
                "shared_expert_intermediate_size": 24,
                "mlp_only_layers": [0],
            }
        ),
        FlintForCausalLM,
        ROUNDED,
        ByHand(flint_keys, flint_tensors),
    ),
    "maple": (
        MellumConfig(
            **WINDOWED
            | {
                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                "num_hidden_layers": 3,
                "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ["full_attention", "sliding_attention"]},
            },
            moe_intermediate_size=16,
            num_experts=6,
            num_experts_per_tok=3,
            swiglu_limit=0.4,
        ),
        MapleForCausalLM,
        ROUNDED,
        ByHand(maple_keys, plain_tensors),
    ),
    "lfm3": (
        Lfm3Config(
            **SMALL
            | {
                "num_hidden_layers": 5,
                "head_dim": 16,
                "sliding_window": 24,
                "conv_L_cache": 7,
                "layer_types": ["conv", "full_attention", "conv", "sliding_attention", "conv"],
                "rope_parameters": {
                    "full_attention": {"rope_type": "proportional", "rope_theta": 20000.0, "partial_rotary_factor": 0.5},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                },
            }
        ),
        Lfm3ForCausalLM,
        ROUNDED,
        ByHand(lfm3_keys, lfm3_tensors, single=["shortconv.conv"]),
    ),
    # A third of the router's choices are identity experts.
    "longcat-flash": (
        LongcatFlashConfig(
            vocab_size=64,
            hidden_size=48,
            ffn_hidden_size=40,
            expert_ffn_hidden_size=16,
            num_layers=2,
            num_attention_heads=4,
            q_lora_rank=24,
            kv_lora_rank=20,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            head_dim=8,
            v_head_dim=12,
            moe_topk=3,
            n_routed_experts=6,
            zero_expert_num=3,
            routed_scaling_factor=3.0,
            max_position_embeddings=512,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            bos_token_id=None,
            eos_token_id=None,
        ),
        LongcatFlashForCausalLM,
        CHOSEN_SHARPLY,
        ByHand(longcat_flash_keys, longcat_flash_tensors, single=["ffn_gate_inp"], architecture="longcat-flash"),
    ),
    # One model without RoPE, like the released ones, and one with RoPE and rates up to 1.
    "olmo-hybrid": (
        OlmoHybridConfig(**OLMO_HYBRID, rope_parameters={"rope_type": "default", "rope_theta": None}),
        OlmoHybridForCausalLM,
        UNNORMED,
        ByHand(olmo_hybrid_keys, olmo_hybrid_tensors, single=["ssm_conv1d"], architecture="olmo-hybrid"),
    ),
    "olmo-hybrid-roped": (
        OlmoHybridConfig(**OLMO_HYBRID, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, linear_allow_neg_eigval=False),
        OlmoHybridForCausalLM,
        UNNORMED,
        ByHand(olmo_hybrid_keys, olmo_hybrid_tensors, single=["ssm_conv1d"], architecture="olmo-hybrid"),
    ),
    "nanochat": (
        NanoChatConfig(**SMALL | {"final_logit_softcapping": 4.0}),
        NanoChatForCausalLM,
        ROUNDED,
        ByHand(nanochat_keys, nanochat_tensors),
    ),
    "vaultgemma": (
        VaultGemmaConfig(
            **SMALL
            | {
                "head_dim": 24,
                "num_hidden_layers": 3,
                "intermediate_size": 48,
                "sliding_window": 24,
                "query_pre_attn_scalar": 24,
                "attn_logit_softcapping": 2.0,
                "final_logit_softcapping": 30.0,
                "hidden_activation": "gelu_pytorch_tanh",
                "tie_word_embeddings": True,
            },
            attn_implementation="eager",
        ),
        VaultGemmaForCausalLM,
        ROUNDED,
        ByHand(vaultgemma_keys, vaultgemma_tensors),
    ),
    "granitehybrid-bamba": (
        BambaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=40,
            num_hidden_layers=3,
            num_attention_heads=2,
            num_key_value_heads=1,
            attn_layer_indices=[1],
            mamba_n_heads=4,
            mamba_n_groups=2,
            mamba_d_head=16,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            max_position_embeddings=512,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        ),
        BambaForCausalLM,
        ROUNDED,
        half_turned,
    ),
    # The first model has only experts, and its file has another name for the last norm.
    "grok": (
        Formula(**GROK | {"num_hidden_layers": 2}),
        GrokForCausalLM,
        ROUNDED,
        ByHand(grok_keys, grok_tensors, single=["ffn_gate_inp"]),
    ),
    "grok-2": (
        Formula(**GROK | {"num_hidden_layers": 2, "beside": True, "logit_cap": 5.0}),
        GrokForCausalLM,
        ROUNDED,
        ByHand(grok_keys, grok_tensors, single=["ffn_gate_inp"]),
    ),
    # The limit cuts a third of queries, keys and values.
    "dbrx": (
        DbrxConfig(
            vocab_size=64,
            d_model=64,
            n_heads=4,
            n_layers=2,
            max_seq_len=512,
            attn_config={"clip_qkv": 0.9, "kv_n_heads": 2, "rope_theta": 10000.0},
            ffn_config={"ffn_hidden_size": 24, "moe_num_experts": 6, "moe_top_k": 3},
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
        DbrxForCausalLM,
        ROUNDED,
        None,
    ),
    "olmo": (OlmoConfig(**SMALL | {"clip_qkv": 0.9}), OlmoForCausalLM, ROUNDED, None),
    "nanbeige": (
        LlamaConfig(**SMALL | {"num_hidden_layers": 2, "num_loops": 3, "skip_loop_final_norm": False}),
        NanbeigeForCausalLM,
        ROUNDED,
        renamed("nanbeige", num_loops=3, skip_loop_final_norm=False),
    ),
    "grovemoe": (
        Qwen3MoeConfig(
            **SMALL | {"head_dim": 16, "hidden_size": 48, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
        ),
        GroveMoeForCausalLM,
        ROUNDED,
        ByHand(grove_keys, grove_tensors, single=["ffn_gate_inp"]),
    ),
    "plamo": (LlamaConfig(**SMALL), PlamoForCausalLM, ROUNDED, ByHand(plain_keys, plain_tensors)),
    # Two of three layers have windows.
    "plamo3": (
        Formula(**FORMULA | {"windows": [24, 24, 0, 24], "neox": True, "intermediate_size": 40, "rope_theta": 1000000.0, "local_theta": 10000.0}),
        Plamo3ForCausalLM,
        UNNORMED,
        ByHand(plamo3_keys, plamo3_tensors),
    ),
    # Layers alternate between a state space and attention. The input of steps is as long as the
    # stream is wide, which is the minimum.
    "plamo2": (
        Formula(
            **FORMULA
            | {"hidden_size": 64, "head_dim": 16, "neox": True, "intermediate_size": 40, "local_theta": 10000.0, "state": 8, "state_heads": 6, "taps": 4, "step_rank": 64}
        ),
        Plamo2ForCausalLM,
        UNNORMED,
        ByHand(plamo2_keys, plamo2_tensors, single=["_norm", "conv1d"]),
    ),
    # RWKV models have only states. They are computed by their formulas.
    "rwkv7": (Formula(**GOOSE), Rwkv7ForCausalLM, UNNORMED, None),
    "arwkv7": (Formula(**HYBRID), RwkvHybridForCausalLM, UNNORMED, None),
    "arwkv7-gateless": (Formula(**HYBRID | {"wkv_has_gate": False, "head_norm": False}), RwkvHybridForCausalLM, UNNORMED, None),
    "rwkv6": (Formula(**FINCH, rescale_every=1), Rwkv6ForCausalLM, UNNORMED, None),
    "rwkv6qwen2": (
        Formula(
            **FINCH
            | {"model_type": "rwkv6qwen2", "architectures": ["RWKV6Qwen2ForCausalLM"], "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
            | {"kv_heads": 2, "rms_norm_eps": 1e-5, "mix_rank": 8, "decay_rank": 12, "lora_rank_tokenshift": 8, "lora_rank_decay": 12}
        ),
        RWKV6Qwen2ForCausalLM,
        UNNORMED,
        None,
    ),
    # Norms after attention enlarge its rounding errors to the size of its result.
    "bitnet": (BitNetConfig(**SMALL | {"hidden_act": "silu"}), BitNetForCausalLM, UNNORMED, ByHand(plain_keys, bitnet_tensors)),
    "bitnet-b1.58": (BitNetConfig(**SMALL), BitNetForCausalLM, UNNORMED, ByHand(plain_keys, bitnet_tensors, architecture="bitnet-b1.58")),
    "gptneox": (GPTNeoXConfig(**GPT_NEOX), GPTNeoXForCausalLM, ROUNDED, None),
    "gptneox-behind": (GPTNeoXConfig(**GPT_NEOX | {"use_parallel_residual": False}), GPTNeoXForCausalLM, UNNORMED, None),
    # Falcon of 7 billion parameters has one key head and one norm; those of 40 and 11 billion have
    # several key heads, and two norms or one.
    "falcon": (FalconConfig(**FALCON), FalconForCausalLM, ROUNDED, None),
    "falcon-two": (FalconConfig(**FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}), FalconForCausalLM, ROUNDED, None),
    # The number of heads is not a power of two.
    "falcon-rw": (
        FalconConfig(
            **FALCON
            | {"hidden_size": 48, "num_attention_heads": 6, "multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}
        ),
        FallingFalcon,
        ROUNDED,
        ByHand(falcon_keys, falcon_tensors),
    ),
    "bloom": (
        BloomConfig(vocab_size=64, hidden_size=48, n_layer=3, n_head=6, seq_length=512, bos_token_id=None, eos_token_id=None),
        BloomForCausalLM,
        ROUNDED,
        None,
    ),
    # The limit cuts a third of queries, keys and values.
    "mpt": (MptConfig(**MPT, attn_config={"clip_qkv": 0.9, "alibi": True, "alibi_bias_max": 8}), MptForCausalLM, ROUNDED, None),
    "mpt-positions": (
        MptConfig(**MPT | {"max_seq_len": 160}, attn_config={"alibi": False, "qk_ln": True}),
        MptNormed,
        ROUNDED,
        None,
    ),
    # Baichuan of 7 and of 13 billion parameters. llama.cpp recognises the latter by its 40 layers;
    # a key replaces that here.
    "baichuan": (LlamaConfig(**SMALL | {"num_key_value_heads": 4}), LlamaForCausalLM, ROUNDED, ByHand(plain_keys, baichuan_tensors)),
    "baichuan-2": (LlamaConfig(**SMALL | {"num_key_value_heads": 4}), UnitHeadForCausalLM, ROUNDED, ByHand(baichuan_2_keys, baichuan_tensors)),
    "baichuan-alibi": (
        LlamaConfig(**SMALL | {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 6}),
        FallingForCausalLM,
        ROUNDED,
        ByHand(falling_keys, baichuan_tensors),
    ),
    "qwen": (
        Qwen2Config(**SMALL | {"num_key_value_heads": 4}),
        Qwen2ForCausalLM,
        ROUNDED,
        ByHand(qwen_keys, jais_tensors),
    ),
    # Head length times number of heads is not the width.
    "plm": (
        DeepseekV3Config(
            **SMALL | {"num_key_value_heads": 4, "intermediate_size": 96, "tie_word_embeddings": True},
            hidden_act="relu2",
            mlp_bias=False,
            q_lora_rank=None,
            kv_lora_rank=32,
            qk_nope_head_dim=16,
            qk_rope_head_dim=8,
            v_head_dim=24,
            first_k_dense_replace=2,
        ),
        PlmForCausalLM,
        ROUNDED,
        ByHand(plm_keys, plm_tensors),
    ),
    "spark2_5": (
        LlamaConfig(**SMALL | {"num_hidden_layers": 3, "intermediate_size": 96}, head_dim=16, hidden_act="gelu"),
        SparkForCausalLM,
        ROUNDED,
        ByHand(spark_keys, spark_tensors),
    ),
    # Each layer has its own number of heads and its own width.
    "openelm": (
        Qwen3Config(**SMALL | {"num_hidden_layers": 3, "tie_word_embeddings": True}, head_dim=16, sizes=[(4, 2, 48), (6, 3, 80), (6, 2, 96)]),
        OpenElmForCausalLM,
        ROUNDED,
        ByHand(openelm_keys, openelm_tensors),
    ),
    "codeshell": (
        Starcoder2Config(**SMALL | {"intermediate_size": 256}, use_bias=True, sliding_window=None),
        Starcoder2ForCausalLM,
        ROUNDED,
        ByHand(codeshell_keys, codeshell_tensors),
    ),
    "opt": (
        OPTConfig(**NO_TOKENS, vocab_size=64, hidden_size=48, num_hidden_layers=3, ffn_dim=80, max_position_embeddings=160, num_attention_heads=4),
        OPTForCausalLM,
        ROUNDED,
        ByHand(first_keys, first_tensors, single=["position_embd"]),
    ),
    # Two of three layers have a window shorter than the prompt. Scores are not divided, so they and
    # the effect of rounded keys are larger.
    "gptneo": (
        GPTNeoConfig(
            **NO_TOKENS, vocab_size=64, hidden_size=48, num_layers=3, num_heads=4, intermediate_size=80, max_position_embeddings=160, window_size=24,
            attention_types=[[["global", "local"], 1], [["local"], 1]],
        ),
        MaskedGPTNeo,
        UNNORMED,
        ByHand(gpt_neo_keys, first_tensors, single=["position_embd"]),
    ),
    # Half of a head is rotated.
    "gptj": (
        GPTJConfig(**NO_TOKENS, vocab_size=64, n_embd=64, n_layer=2, n_head=4, n_positions=512, rotary_dim=8, tie_word_embeddings=False),
        GPTJForCausalLM,
        ROUNDED,
        ByHand(gpt_j_keys, first_tensors),
    ),
    "codeshell-one": (
        Starcoder2Config(**SMALL | {"intermediate_size": 256, "tie_word_embeddings": True}, use_bias=True, sliding_window=None),
        Starcoder2ForCausalLM,
        ROUNDED,
        ByHand(codeshell_keys, codeshell_one_tensors),
    ),
    "paddleocr": (
        PaddleOCRVLConfig(
            text_config=SMALL | {"head_dim": 24, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [6, 3, 3]}},
            vision_config={"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
            tie_word_embeddings=False,
        ),
        PaddleOCRVLForConditionalGeneration,
        ROUNDED,
        None,
    ),
    # The base of RoPE is multiplied by a power of `alpha`.
    "hunyuan_vl": (
        HunYuanVLConfig(
            text_config=SMALL
            | {"head_dim": 16, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 1000.0, "mrope_section": [2, 2, 2, 2]}},
            vision_config={"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "text_hidden_size": 64},
            tie_word_embeddings=False,
        ),
        HunYuanVLForConditionalGeneration,
        ROUNDED,
        None,
    ),
    "deepseek2-ocr": (
        LlamaConfig(
            **SMALL
            | {
                "num_key_value_heads": 4,
                "intermediate_size": 48,
                "moe_intermediate_size": 16,
                "n_shared_experts": 2,
                "n_routed_experts": 6,
                "num_experts_per_tok": 3,
                "first_k_dense_replace": 1,
            }
        ),
        DeepseekForCausalLM,
        ROUNDED,
        ByHand(deepseek_ocr_keys, deepseek_ocr_tensors, architecture="deepseek2-ocr"),
    ),
    "cogvlm": (
        LlamaConfig(**SMALL | {"num_key_value_heads": 4}),
        CogVlmForCausalLM,
        ROUNDED,
        ByHand(plain_keys, cogvlm_tensors),
    ),
    # Each stack has two layers. The lower stack runs four times.
    "hrm_text": (
        HrmTextConfig(**SMALL | {"num_key_value_heads": 4}, head_dim=16, H_cycles=2, L_cycles=2, embedding_scale=3.0, prefix_lm=False),
        HrmTextForCausalLM,
        UNNORMED,
        None,
    ),
    "chameleon": (
        LlamaConfig(**SMALL, swin_norm=False),
        ChameleonTextForCausalLM,
        ROUNDED,
        ByHand(chameleon_keys, chameleon_tensors, single=["_norm."]),
    ),
    # Norms come after blocks.
    "chameleon-behind": (
        LlamaConfig(**SMALL, swin_norm=True),
        ChameleonTextForCausalLM,
        UNNORMED,
        ByHand(chameleon_keys, chameleon_tensors, single=["_norm."]),
    ),
    "talkie": (
        LlamaConfig(**SMALL | {"num_key_value_heads": 4}, rms_norm_eps=float(np.finfo(np.float32).eps), logit_scale=0.7),
        TalkieForCausalLM,
        ROUNDED,
        ByHand(talkie_keys, talkie_tensors, single=["_norm."]),
    ),
    "refact": (
        LlamaConfig(**SMALL | {"intermediate_size": 256, "num_key_value_heads": 1}),
        FallingForCausalLM,
        ROUNDED,
        ByHand(still_keys, plain_tensors),
    ),
    "jais": (
        LlamaConfig(**SMALL | {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True}),
        JaisForCausalLM,
        ROUNDED,
        ByHand(jais_keys, jais_tensors),
    ),
    "gpt2": (GPT2Config(**GPT2, tie_word_embeddings=False), GPT2LMHeadModel, ROUNDED, None),
    "starcoder": (
        GPTBigCodeConfig(**GPT2, tie_word_embeddings=True, activation_function="gelu_pytorch_tanh", multi_query=True),
        GPTBigCodeForCausalLM,
        ROUNDED,
        None,
    ),
}
