"""A model of your own: a residual block around torch's GRU, once for each seed, on any tunnel.

python examples/gru.py                                     trains it on the sticky Markov chain: half a minute
bayesattn --load examples/gru.py train hmm --model gru     every command knows it then
"""

from torch import Tensor, nn

import bayesattn_fast as ba
from bayesattn_fast.models import ModelConfig, PerSeed


class Block(nn.Module):
    """x + GRU(norm x): an ordinary module of one model, (B, N, d) → (B, N, d)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.gru = nn.LayerNorm(width), nn.GRU(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gru(self.norm(x))[0]


@ba.register_model("gru")
def blocks(seeds: int, config: ModelConfig) -> PerSeed:
    """One layer of the ensemble: a block for each seed."""
    return PerSeed(seeds, lambda: Block(config.d_model))


def main(**settings: object) -> ba.Run:
    """Train it beside nothing but the references; settings are those of ba.train."""
    chosen = {"model": "gru", "layers": 1, "d_model": 32, "steps": 300, "overwrite": True, "out": "runs/gru"}
    run = ba.train("markov", **chosen | settings)
    print("KL from the exact posterior, bits:", run.evaluation.summary("kl"))
    print("best that reads no context:       ", run.evaluation.summary("kl", "best position-only"))
    print("report:", run.report)
    return run


if __name__ == "__main__":
    main()
