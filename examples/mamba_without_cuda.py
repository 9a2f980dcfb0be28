"""transformers' Mamba on a CPU, before and after `patch()`: the same numbers, sooner.

    python examples/mamba_without_cuda.py      seconds on a CPU; needs transformers

Nothing of the model changes: the functions that it calls are replaced, forward and backward.
"""

import argparse
import time

import torch
from torch import nn

import bayesattn_fast as ba


def small_mamba(width: int = 64, layers: int = 2) -> nn.Module:
    """A language model of transformers with weights of its own."""
    from transformers import MambaConfig, MambaForCausalLM
    from transformers.utils import logging

    logging.set_verbosity_error()  # it says that it found no CUDA kernels
    torch.manual_seed(0)
    return MambaForCausalLM(MambaConfig(vocab_size=64, hidden_size=width, num_hidden_layers=layers))


def step(model: nn.Module, tokens: torch.Tensor) -> tuple[float, dict[str, torch.Tensor], float]:
    """Loss, gradients by name, seconds."""
    model.zero_grad()
    start = time.perf_counter()
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    seconds = time.perf_counter() - start
    return loss.item(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    given = parser.parse_args()
    model = small_mamba()
    tokens = torch.randint(64, (given.batch, given.length), generator=torch.Generator().manual_seed(1))
    loss, gradients, seconds = step(model, tokens)
    print(f"transformers alone:  loss {loss:.5f}, {seconds:.2f} s forward and backward")
    for name in ba.patch("transformers"):
        print("replaced", name)
    step(model, tokens)  # the first call may compile
    ours, found, faster = step(model, tokens)
    largest = max((found[n] - g).abs().max().item() / g.abs().max().item() for n, g in gradients.items())
    print(
        f"patched:             loss {ours:.5f}, {faster:.2f} s; largest relative difference of a gradient {largest:.0e}"
    )
    ba.unpatch()


if __name__ == "__main__":
    main()
