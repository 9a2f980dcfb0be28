"""Watch attention learn: advantage and responsibility in a transformer written in plain PyTorch.

    python examples/advantage.py                seconds on a CPU

The task is to repeat: eight random symbols, then the same again, so attention must learn to look back where the next
symbol stood. `record_dynamics` collects, in the ordinary backward pass, how much each query has to gain from other
routing (the standard deviation of its advantage), how spread its routing is, and how many keys share the
responsibility.
"""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesattn_fast as ba

HALF, SYMBOLS = 8, 16


class Block(nn.Module):
    """Pre-norm attention and MLP; one line of it is this package's."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.ln1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        o = ba.scaled_dot_product_attention(q, k, v, is_causal=True)  # was F.scaled_dot_product_attention
        x = x + self.out(o.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln2(x))


class Transformer(nn.Module):
    """Two blocks of one head between an embedding and a head."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(SYMBOLS, width), nn.Embedding(2 * HALF, width)
        self.blocks = nn.Sequential(Block(width, 1), Block(width, 1))
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.tokens(x) + self.places.weight[: x.shape[1]]))


def train(steps: int, every: int, seed: int = 0) -> list[dict[str, float]]:
    """Train and print a line every `every` steps; returns the lines as numbers."""
    torch.manual_seed(seed)
    model, lines = Transformer(), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    print(f"{'step':>6} {'loss':>6}   layer: routing entropy (bits), advantage (nats, std), keys that share the mass")
    for step in range(steps + 1):
        half = torch.rand(64, SYMBOLS).argsort(1)[:, :HALF]  # distinct symbols
        x = half.repeat(1, 2)
        with ba.record_dynamics(model) as record:
            logits = model(x[:, :-1])[:, HALF - 1 :]
            loss = F.cross_entropy(logits.flatten(0, 1), x[:, HALF:].flatten())
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        if step % every == 0:
            line = {"step": step, "loss": loss.item()}
            answers = x[:, HALF:].numel()  # the loss is their mean: an answer's own loss is so many times larger
            for i, layer in enumerate(record):
                # Positions of the second half, where answers are wanted.
                mass = layer.columns.responsibility.mean((0, 1))
                share = mass / mass.sum()
                line[f"entropy {i}"] = layer.entropy[..., HALF:].mean().item() / math.log(2)
                line[f"advantage {i}"] = answers * layer.rows.variance[..., HALF:].mean().sqrt().item()
                line[f"keys {i}"] = torch.special.entr(share).sum().exp().item()
            shown = "   ".join(
                f"{i}: {line[f'entropy {i}']:.2f}, {line[f'advantage {i}']:.2f}, {line[f'keys {i}']:.1f}"
                for i in range(len(record))
            )
            print(f"{step:6d} {line['loss']:6.3f}   {shown}")
            lines.append(line)
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--every", type=int, default=10)
    given = parser.parse_args()
    train(given.steps, given.every)
