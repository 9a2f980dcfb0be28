"""An ordinary PyTorch module as a layer of an ensemble: once for each seed, with weights of its own."""

import zlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call


class PerSeed(nn.Module):
    """x (E, B, N, d) → (E, B, N, d): `make()` gives a module (B, N, d) → (B, N, d), which is called once a seed.

    Its weights are stacked, (E, …); buffers are shared. Each seed starts from what `make()` draws when torch's
    generator is set by the seed and the layer's name, whichever other seeds there are. A module that draws random
    numbers in its forward pass (dropout) trains, but a resumed run then differs from an uninterrupted one.
    """

    def __init__(self, seeds: int, make: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.make = make
        # In a tuple, so that the template's own parameters are not the ensemble's.
        self.template = (make(),)
        self.names = tuple(name for name, _ in self.template[0].named_parameters())
        for name, parameter in self.template[0].named_parameters():
            self.register_parameter(_flat(name), nn.Parameter(torch.empty(seeds, *parameter.shape)))
        for name, buffer in self.template[0].named_buffers():
            self.register_buffer(_flat(name), buffer, persistent=False)

    def reset_seeds(self, seeds: Sequence[int], name: str) -> None:
        """The initial weights of every seed; leaves torch's generator as it was."""
        for e, seed in enumerate(seeds):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(zlib.crc32(f"{seed} {name}".encode()))
                for part, parameter in self.make().named_parameters():
                    getattr(self, _flat(part))[e].copy_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        (module,) = self.template
        module.train(self.training)
        buffers = {name: getattr(self, _flat(name)) for name, _ in module.named_buffers()}
        stacked = {name: getattr(self, _flat(name)).unbind(0) for name in self.names}
        out = []
        for e, rows in enumerate(x.unbind(0)):
            out.append(functional_call(module, {name: parts[e] for name, parts in stacked.items()} | buffers, rows))
        return torch.stack(out)


def _flat(name: str) -> str:
    """A parameter's path as one attribute: names of attributes hold no dots."""
    return "of_" + name.replace(".", "_of_")
