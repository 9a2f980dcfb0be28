"""A transformer of torch's own layers, trained in a plain loop one seed at a time, from the weights ours start at."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...models import ModelConfig
from ...tunnels.protocol import Tunnel


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class _MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.mlp = _Attention(width, heads), _MLP(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class PlainTransformer(nn.Module):
    """tokens (B, N) → logits (B, P, C) at the scored positions; parameter names are those of our models."""

    def __init__(self, config: ModelConfig, tunnel: Tunnel) -> None:
        super().__init__()
        assert tunnel.vocabulary is not None
        self.embed = nn.Embedding(tunnel.vocabulary, config.d_model)
        self.pos_embed = nn.Parameter(torch.empty(tunnel.length, config.d_model))
        self.blocks = nn.ModuleList(_Block(config.d_model, config.heads) for _ in range(config.layers))
        self.ln_final = nn.LayerNorm(config.d_model)
        self.unembed = nn.Linear(config.d_model, tunnel.classes)
        self.positions = list(tunnel.positions)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.unembed(self.ln_final(x[:, self.positions]))


class PlainLoop:
    """One seed: batches of the tunnel, cross-entropy, torch's AdamW. `weights` are those of one seed, by name."""

    def __init__(
        self, config: ModelConfig, tunnel: Tunnel, seed: int, batch: int, lr: float, weights: Mapping[str, Tensor]
    ) -> None:
        some = next(iter(weights.values()))
        self.tunnel, self.seed, self.batch, self.device, self.done = tunnel, seed, batch, some.device, 0
        self.model = PlainTransformer(config, tunnel).to(some.device, some.dtype)
        self.model.load_state_dict(dict(weights))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=0.01)

    def step(self) -> Tensor:
        """One update; the loss before it, in nats."""
        batch = self.tunnel.sample([self.seed], self.done, self.batch, device=self.device)
        loss = F.cross_entropy(self.model(batch.inputs[0]).flatten(0, 1), batch.targets[0].flatten())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.done += 1
        return loss.detach()
