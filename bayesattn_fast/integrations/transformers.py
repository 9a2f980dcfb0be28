"""Hugging Face transformers on this package's attention.

register()
model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="bayesattn")
"""

from typing import Any

from torch import Tensor, nn

from ..ops.attention import scaled_dot_product_attention
from ..ops.attention_record import refuse_while_recording

__all__ = ["attention_forward", "register"]

NAME = "bayesattn"
# Arguments of other implementations that change the result, and that nobody here would apply.
REFUSED = ("softcap", "s_aux", "output_attentions")


def register(name: str = NAME) -> None:
    """Add attention implementation `name` to transformers; doing it again changes nothing.

    Calls without a mask or dropout run on this package's kernels, causal or full, grouped heads without a copy, so
    that `record_dynamics` sees them. Padded batches, sliding windows, position biases and dropout go to transformers'
    own "sdpa", except inside `record_dynamics`, where they raise RuntimeError. Softcap, attention sinks and
    output_attentions raise ValueError. Raises ImportError where transformers is missing or older than 4.53.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    AttentionInterface.register(name, attention_forward)
    # The mask of "sdpa" is None wherever is_causal says it all.
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What transformers calls: query (B, H, N_q, D), key and value (B, H_kv, N_k, D) → (B, N_q, H, D), no weights."""
    for name in REFUSED:
        if (given := options.get(name)) is not None and given is not False:
            raise ValueError(
                f'attention "{NAME}" does not take {name}; load the model with attn_implementation="eager"'
            )
    if attention_mask is not None or position_bias is not None or dropout != 0.0:
        refuse_while_recording("attention with a mask, a position bias or dropout")
        return _torch_attention(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, position_bias, options
        )
    wanted = getattr(module, "is_causal", True) if is_causal is None else is_causal
    # A single query against a cache sees all of it.
    causal = bool(wanted) and query.shape[2] > 1
    o = scaled_dot_product_attention(
        query, key, value, is_causal=causal, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return o.transpose(1, 2).contiguous(), None


def _torch_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
    position_bias: Tensor | None,
    options: dict[str, Any],
) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if position_bias is not None:  # older releases take none
        options = {**options, "position_bias": position_bias}
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **options
    )
