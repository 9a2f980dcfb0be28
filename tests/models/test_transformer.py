"""The transformer's attention: the plain formula, reduced precision, every seed for itself, recording."""

import pytest
import torch
from torch import Tensor, nn

from bayesattn_fast.models import ModelConfig
from bayesattn_fast.models.transformer import Attention, TransformerBlock
from bayesattn_fast.ops.attention import record_dynamics
from tests.closeness import assert_close

CONFIG = ModelConfig(d_model=12, heads=3, layers=1)


def attention_of(seeds: int, dtype: torch.dtype = torch.float32) -> Attention:
    torch.manual_seed(0)
    layer = Attention(seeds, CONFIG)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.to(dtype)


def plain(layer: Attention, x: Tensor) -> Tensor:
    """Seed by seed, head by head, with the softmax written out."""
    hidden = torch.ones(x.shape[2], x.shape[2], dtype=torch.bool).triu(1)
    outputs = []
    for e in range(x.shape[0]):
        qkv = x[e] @ layer.qkv.weight[e].T + layer.qkv.bias[e]
        heads = []
        for q, k, v in zip(*(part.split(4, -1) for part in qkv.split(12, -1)), strict=True):
            heads.append((q @ k.mT / 2).masked_fill(hidden, -torch.inf).softmax(-1) @ v)
        outputs.append(torch.cat(heads, -1) @ layer.out.weight[e].T + layer.out.bias[e])
    return torch.stack(outputs)


def gradients(layer: Attention, out: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(out.sin().sum(), list(layer.parameters())))


def test_output_and_gradients_of_every_seed_equal_the_formula_in_float64() -> None:
    layer, exact = attention_of(3), attention_of(3, torch.float64)
    x = torch.randn(3, 2, 11, 12)
    out, wanted = layer(x), plain(exact, x.double())
    assert_close(out, wanted, 2e-6)
    for found, gradient in zip(gradients(layer, out), gradients(exact, wanted), strict=True):
        assert_close(found, gradient, 4e-6)


def test_autocast_to_bfloat16_keeps_its_accuracy() -> None:
    layer, exact = attention_of(2), attention_of(2, torch.float64)
    x = torch.randn(2, 4, 11, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = layer(x)
    wanted = plain(exact, x.double())
    assert out.dtype == torch.bfloat16
    assert_close(out, wanted, 1e-2)
    for found, gradient in zip(gradients(layer, out.float()), gradients(exact, wanted), strict=True):
        assert found.dtype == torch.float32
        assert_close(found, gradient, 3e-2)


def test_torch_func_gradients_equal_those_of_backward() -> None:
    layer, x = attention_of(2), torch.randn(2, 3, 7, 12)
    weights = {name: parameter.detach() for name, parameter in layer.named_parameters()}
    found = torch.func.grad(lambda p: torch.func.functional_call(layer, p, (x,)).sin().sum())(weights)
    for gradient, name in zip(gradients(layer, layer(x)), weights, strict=True):
        assert_close(found[name], gradient, 1e-6, name)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_compiled_block_equals_eager() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    block, x = TransformerBlock(2, CONFIG), torch.randn(2, 3, 7, 12)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.3)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    assert_close(compiled(x), block(x), 1e-6)
    wanted, found = (torch.autograd.grad(f(x).sin().sum(), list(block.parameters())) for f in (block, compiled))
    for a, b in zip(found, wanted, strict=True):
        assert_close(a, b, 2e-6)


def test_a_record_of_two_blocks_separates_layers_seeds_and_heads() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(TransformerBlock(2, CONFIG), TransformerBlock(2, CONFIG))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    x = torch.randn(2, 5, 9, 12)
    with record_dynamics(model) as record:
        model(x).square().sum().backward()
    assert record.modules() == ["0.attn", "1.attn"]
    for name in record.modules():
        (layer,) = record[name]
        mass = layer.columns.responsibility
        assert mass.shape == (2 * 5, 3, 9)  # seeds before sequences
        assert_close(mass.sum(-1), torch.full((10, 3), 9.0), 2e-6)


def test_a_shift_of_all_keys_moves_no_softmax() -> None:
    layer = attention_of(2)
    layer(torch.randn(2, 5, 9, 12)).sin().sum().backward()
    gradient = layer.qkv.bias.grad
    assert gradient is not None
    assert float(gradient[:, 12:24].norm()) < 1e-5 * float(gradient.norm())
