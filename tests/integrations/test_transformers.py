"""transformers models on this package's attention: logits and gradients of their own eager attention."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesattn_fast.integrations.transformers import attention_forward, register
from bayesattn_fast.ops.attention import record_dynamics
from tests.closeness import assert_close

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
CONFIGS = {
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=31, n_positions=64, n_embd=32, n_layer=2, n_head=4, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0
    ),
    "llama": lambda: transformers.LlamaConfig(
        vocab_size=31,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    ),
}
TOKENS = torch.randint(0, 31, (3, 21), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def registered() -> None:
    register()
    register()  # twice does no harm


@pytest.fixture(params=CONFIGS)
def pair(request: pytest.FixtureRequest) -> tuple[nn.Module, nn.Module]:
    """The same random model with eager attention and with ours."""
    torch.manual_seed(1)
    config = CONFIGS[request.param]()
    eager = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    ours = transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config), attn_implementation="bayesattn")
    ours.load_state_dict(eager.state_dict())
    # Larger weights than those of the initialisation, whose attention is nearly uniform.
    for model in (eager, ours):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "attn.c_attn.weight" in name or "q_proj" in name or "k_proj" in name:
                    parameter.mul_(20)
    return eager.train(), ours.train()


def logits_and_gradients(model: nn.Module, live: Tensor, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Logits and gradients of a loss on the live tokens alone: eager gives the dead ones a uniform attention."""
    model.zero_grad()
    logits = model(TOKENS, **options).logits * live[..., None]
    logits.sin().sum().backward()
    return logits, {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("padding", ["none", "left", "right", "all ones"])
def test_logits_and_gradients_equal_eager(pair: tuple[nn.Module, nn.Module], padding: str) -> None:
    live = torch.ones(3, 21, dtype=torch.int64)
    if padding == "left":
        live[0, :5] = live[2, :20] = 0
    if padding == "right":
        live[0, 16:] = live[2, 1:] = 0
    options = {} if padding == "none" else {"attention_mask": live}
    (wanted, exact), (found, gradients) = (logits_and_gradients(model, live, **options) for model in pair)
    assert_close(found, wanted, 2e-6)
    assert gradients.keys() == exact.keys()
    for name, gradient in gradients.items():
        assert_close(gradient, exact[name], 2e-5, name)


def test_unpadded_batches_run_on_our_kernels_and_leave_a_record(pair: tuple[nn.Module, nn.Module]) -> None:
    _, ours = pair
    with record_dynamics(ours) as record:
        ours(TOKENS, labels=TOKENS).loss.backward()
    assert len(record.modules()) == 2
    for layer in record:
        assert layer.causal
        assert_close(layer.columns.responsibility.sum(-1), torch.full((3, 4), 21.0), 2e-6)


def test_padded_batches_cannot_be_recorded(pair: tuple[nn.Module, nn.Module]) -> None:
    live = torch.ones(3, 21, dtype=torch.int64)
    live[0, :5] = 0
    with record_dynamics(pair[1]), pytest.raises(RuntimeError, match="cannot record attention with a mask"):
        pair[1](TOKENS, attention_mask=live)


def test_generation_from_a_cache_gives_the_tokens_of_eager(pair: tuple[nn.Module, nn.Module]) -> None:
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    wanted, found = (model.eval().generate(TOKENS, **options) for model in pair)
    assert torch.equal(found, wanted)


def test_dropout_is_that_of_sdpa() -> None:
    q, k, v = (torch.randn(2, 4, 9, 8) for _ in range(3))
    torch.manual_seed(0)
    found, _ = attention_forward(nn.Module(), q, k, v, None, dropout=0.5, is_causal=True)
    torch.manual_seed(0)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=0.5, is_causal=True)
    assert torch.equal(found, wanted.transpose(1, 2))


@pytest.mark.parametrize(
    "option", [{"softcap": 30.0}, {"s_aux": torch.zeros(4)}, {"output_attentions": True}], ids=lambda o: next(iter(o))
)
def test_what_changes_the_result_and_is_not_supported_raises(option: dict[str, Any]) -> None:
    q = torch.randn(2, 4, 9, 8)
    with pytest.raises(ValueError, match=f'"bayesattn" does not take {next(iter(option))}'):
        attention_forward(nn.Module(), q, q, q, None, **option)
