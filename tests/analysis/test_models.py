"""What is taken out of a model is what the model computes, and switching a part off does exactly that."""

import pytest
import torch

from bayesattn_fast import models, tunnels
from bayesattn_fast.analysis import ablated, captured, pattern
from bayesattn_fast.models import ModelConfig, SequenceModel

TASK = tunnels.make("bijection", symbols=5, pairs=4)


def made(architecture: str = "transformer", layers: int = 2) -> tuple[SequenceModel, torch.Tensor]:
    model = models.build(ModelConfig(architecture, layers, 16, heads=2), TASK, (0, 1))  # type: ignore[arg-type]
    return model, TASK.sample((0, 1), 0, 3).inputs


@torch.no_grad()
def test_captured_attention_is_that_of_the_model() -> None:
    model, inputs = made()
    with captured(model) as seen:
        logits = model(inputs)
    weights = pattern(seen.queries[1], seen.keys[1])
    outputs = (weights @ seen.values[1]).transpose(2, 3).flatten(3)
    torch.testing.assert_close(outputs, seen.outputs[1], rtol=1e-4, atol=1e-5)
    assert seen.final is not None
    torch.testing.assert_close(model.unembed(seen.final), logits)
    scored = seen.states[1].index_select(2, torch.tensor(TASK.positions))
    torch.testing.assert_close(model.ln_final(scored), seen.final)


@torch.no_grad()
def test_states_of_every_architecture_are_captured_and_hooks_are_gone_afterwards() -> None:
    for architecture in models.BLOCKS:
        model, inputs = made(architecture)
        with captured(model) as seen:
            model(inputs)
        assert seen.states[1].shape == (2, 3, TASK.length, 16)
        assert bool(seen.queries) == (architecture == "transformer")
        seen.states.clear()
        model(inputs)
        assert not seen.states


@torch.no_grad()
def test_a_head_that_nobody_reads_can_be_ablated_without_a_trace() -> None:
    model, inputs = made()
    model.blocks[0].attn.out.weight[..., 8:] = 0.0  # head 1 of layer 0 is not read
    before = model(inputs)
    with ablated(model, heads=[(0, 1)]):
        assert torch.equal(model(inputs), before)
    with ablated(model, heads=[(0, 0)]):
        assert not torch.allclose(model(inputs), before)
    assert torch.equal(model(inputs), before)


@torch.no_grad()
def test_all_heads_off_leave_the_output_bias_and_attention_off_leaves_nothing() -> None:
    model, inputs = made(layers=1)
    with ablated(model, heads=[(0, 0), (0, 1)]):
        heads_off = model(inputs)
    with ablated(model, attention=[0]):
        attention_off = model(inputs)
    torch.testing.assert_close(heads_off, attention_off)  # biases start at 0
    model.blocks[0].attn.out.bias += 1.0
    with ablated(model, attention=[0]):
        torch.testing.assert_close(model(inputs), attention_off)


@torch.no_grad()
def test_a_removed_layer_is_the_identity() -> None:
    model, inputs = made(layers=2)
    with ablated(model, layers=[0, 1]), captured(model) as seen:
        model(inputs)
    model.blocks = torch.nn.ModuleList()
    with captured(model) as bare:
        model(inputs)
    torch.testing.assert_close(seen.final, bare.final)


def test_what_does_not_exist_cannot_be_ablated() -> None:
    model, _ = made()
    with pytest.raises(ValueError, match="head must be in 0 … 1; got 2"), ablated(model, heads=[(0, 2)]):
        pass
    with pytest.raises(ValueError, match="layer must be in 0 … 1; got 2"), ablated(model, layers=[2]):
        pass
    lstm, _ = made("lstm")
    with pytest.raises(ValueError, match="layer 0 of a lstm has no attention"), ablated(lstm, attention=[0]):
        pass
