"""A model that does not come with the package: registering it, and ordinary modules as layers of an ensemble."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesattn_fast as ba
from bayesattn_fast.models import BLOCKS, ModelConfig, PerSeed, build
from bayesattn_fast.tunnels import Bijection

TUNNEL = Bijection(symbols=4, pairs=3)


class Recurrent(nn.Module):
    """An ordinary module with nested parameters and a buffer."""

    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))
        self.gru = nn.GRU(width, width, batch_first=True)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.gru(self.part(x))[0]


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    BLOCKS.pop("own", None)


def own(seeds: int, config: ModelConfig) -> PerSeed:
    return PerSeed(seeds, lambda: Recurrent(config.d_model))


def test_every_seed_computes_what_the_ordinary_module_computes_with_its_weights() -> None:
    ba.register_model("own")(own)
    model = build(ModelConfig("own", layers=1, d_model=8), TUNNEL, [0, 7])
    layer: Any = model.blocks[0]
    x = torch.randn(2, 3, 5, 8)
    out = layer(x)
    for e in range(2):
        alone = Recurrent(8)
        state = {name: getattr(layer, "of_" + name.replace(".", "_of_"))[e] for name, _ in alone.named_parameters()}
        alone.load_state_dict(state, strict=False)
        torch.testing.assert_close(out[e], alone(x[e]))


def test_a_seed_starts_the_same_in_any_company_and_torchs_generator_is_left_alone() -> None:
    ba.register_model("own")(own)
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    alone = build(ModelConfig("own", layers=2, d_model=8), TUNNEL, [7])
    among = build(ModelConfig("own", layers=2, d_model=8), TUNNEL, [3, 7, 1])
    # Making the templates draws; putting in the seeds' weights does not.
    torch.manual_seed(5)
    among.reset_parameters()
    assert torch.equal(torch.rand(1), expected)
    for (name, a), (_, b) in zip(alone.named_parameters(), among.named_parameters(), strict=True):
        assert torch.equal(a[0], b[1]), name
    assert not torch.equal(among.blocks[0].of_gru_of_weight_ih_l0[0], among.blocks[0].of_gru_of_weight_ih_l0[1])


def test_gradients_stay_within_their_seed() -> None:
    ba.register_model("own")(own)
    model = build(ModelConfig("own", layers=1, d_model=8), TUNNEL, [0, 1])
    batch = TUNNEL.sample([0, 1], 0, 4)
    model(batch.inputs)[0].sum().backward()
    for name, parameter in model.blocks.named_parameters():
        assert parameter.grad is not None
        assert parameter.grad[0].abs().sum() > 0, name
        assert not parameter.grad[1].any(), name


def test_a_registered_model_trains_and_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    ba.register_model("own")(own)
    small: dict[str, Any] = {"model": "own", "layers": 1, "d_model": 8, "warmup": 1, "eval_sequences": 32, "batch": 4}

    def stop(step: int, result: object) -> None:
        if step == 3:
            raise KeyboardInterrupt

    whole = ba.train("bijection", steps=6, checkpoint_every=2, out=tmp_path / "whole", **small)
    with pytest.raises(KeyboardInterrupt):
        ba.train("bijection", steps=6, checkpoint_every=2, out=tmp_path / "cut", on_step=stop, **small)
    resumed = ba.train("bijection", steps=6, checkpoint_every=2, out=tmp_path / "cut", resume=True, **small)
    assert torch.equal(whole.evaluation.per_seed("kl"), resumed.evaluation.per_seed("kl"))


def test_positions_are_learned_only_where_the_block_asks_for_them() -> None:
    class Blind(nn.Identity):
        needs_positions = True

    ba.register_model("own")(own)
    assert build(ModelConfig("own", d_model=8), TUNNEL, [0]).pos_embed is None
    ba.register_model("own")(Blind)
    assert build(ModelConfig("own", d_model=8), TUNNEL, [0]).pos_embed is not None


def test_names_of_the_package_stay_its_own_and_a_misspelt_one_is_answered() -> None:
    with pytest.raises(ValueError, match="'lstm' comes with the package"):
        ba.register_model("lstm")
    with pytest.raises(ValueError, match="did you mean transformer"):
        ba.train("bijection", model="trasformer")
