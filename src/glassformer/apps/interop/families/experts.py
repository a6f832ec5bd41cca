"""Mixtral (Jiang 2024) and Qwen3-MoE: decoders with Llama's blocks and experts in place of the feed-forward layers."""

from functools import partial
from typing import Any

from glassformer.apps.interop.families import llama
from glassformer.apps.interop.families.windows import uniform, write_window
from glassformer.apps.interop.family import Rule, lines, rule
from glassformer.apps.interop.hf_config import Fields, HFConfig, inside, settings
from glassformer.config.transformer import Balance, BalanceLoss, Experts, NoBalance, TransformerConfig

PROJECTIONS = ("gate", "up", "down")


def read_experts(hf: HFConfig, n_experts: int, n_active: int, names: tuple[str, str], normalize: bool) -> Experts:
    """Read the experts; `n_experts` and `n_active` are the defaults of the keys `names`."""
    weight = hf.take("router_aux_loss_coef", float, 0.001)
    balance: Balance = BalanceLoss(weight) if weight > 0 else NoBalance()
    return Experts(hf.take(names[0], int, n_experts), hf.take(names[1], int, n_active), normalize, balance)


def write_experts(config: TransformerConfig, names: tuple[str, str]) -> dict[str, Any]:
    experts = config.experts or Experts()
    weight = experts.balance.weight if isinstance(experts.balance, BalanceLoss) else 0.0
    return {names[0]: experts.n_experts, names[1]: experts.n_active, "router_aux_loss_coef": weight}


def table(config: TransformerConfig, layer: str, projections: tuple[str, str, str]) -> list[Rule]:
    """Return the table; `layer` is the name of the experts' layer, and `projections` are gate, up and down inside."""
    n_experts = (config.experts or Experts()).n_experts
    ours, theirs = "decoder.blocks.{i}.ff.", f"model.layers.{{i}}.{layer}."
    return [
        *(entry for entry in llama.table_llama(config) if ".ff." not in entry.ours[0]),
        *lines(ours, theirs, {"router.proj": "gate"}),
        *(
            rule(f"{ours}{mine}_proj", tuple(f"{theirs}experts.{i}.{other}" for i in range(n_experts)))
            for mine, other in zip(PROJECTIONS, projections, strict=True)
        ),
    ]


MIXTRAL_NAMES = ("num_local_experts", "num_experts_per_tok")


def read_mixtral(hf: HFConfig, fields: Fields) -> Fields:
    window = hf.maybe("sliding_window", int)
    return llama.read_common(hf, fields, n_kv_heads=8, base=1e6) | {
        "decoder.window_pattern": uniform(window),
        "experts": read_experts(hf, 8, 2, MIXTRAL_NAMES, normalize=True),
    }


def write_mixtral(config: TransformerConfig) -> dict[str, Any]:
    return llama.write_common(config) | write_window(config) | write_experts(config, MIXTRAL_NAMES)


MIXTRAL = llama.family(
    "Mixtral",
    llama.settings_of("decoder", norm_eps=1e-5),
    unused="output_router_logits router_jitter_noise",
    table=partial(table, layer="block_sparse_moe", projections=("w1", "w3", "w2")),
    read_others=read_mixtral,
    write_others=write_mixtral,
)

QWEN_NAMES = ("num_experts", "num_experts_per_tok")
SIZES = llama.SIZES | settings(int, d_ff="moe_intermediate_size")


def read_qwen3_moe(hf: HFConfig, fields: Fields) -> Fields:
    window = None
    if hf.take("use_sliding_window", bool, False):
        window = hf.maybe("sliding_window", int)
    hf.pass_over("sliding_window")
    normalize = hf.take("norm_topk_prob", bool, False)
    return llama.read_common(hf, fields, n_kv_heads=4) | {
        "decoder.window_pattern": uniform(window),
        "experts": read_experts(hf, 128, 8, QWEN_NAMES, normalize),
    }


def write_qwen3_moe(config: TransformerConfig) -> dict[str, Any]:
    window = write_window(config)
    return (
        llama.write_common(config)
        | {"use_sliding_window": window["sliding_window"] is not None}
        | window
        | {"norm_topk_prob": (config.experts or Experts()).normalize}
        | {"decoder_sparse_step": 1, "mlp_only_layers": [], "intermediate_size": config.head_stack.d_ff}
        | write_experts(config, QWEN_NAMES)
    )


QWEN3_MOE = llama.family(
    "Qwen3Moe",
    llama.SETTINGS | settings(float, 1e-6, norm_eps="rms_norm_eps") | inside("decoder", SIZES) | llama.BIASES,
    name="Qwen3-MoE",
    model_type="qwen3_moe",
    always=llama.ALWAYS | {"qk_norm": True},
    only={"decoder_sparse_step": 1, "mlp_only_layers": []},
    unused="intermediate_size max_window_layers output_router_logits",
    old_keys={"num_local_experts": "num_experts"},
    table=partial(table, layer="mlp", projections=("gate_proj", "up_proj", "down_proj")),
    read_others=read_qwen3_moe,
    write_others=write_qwen3_moe,
    builder=llama.QWEN["builder"],
    roles=llama.QWEN["roles"],
)
