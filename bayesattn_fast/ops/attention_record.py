"""Record the gradient dynamics of every attention layer from a model's ordinary backward pass."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from bayesattn_fast.kernels.attention.results import ColumnStatistics, RowStatistics

from .attention_autograd import Receiver


@dataclass(frozen=True)
class LayerDynamics:
    """One attention call's statistics, by the closed forms of the gradient; tensors (B, H, N_q) and (B, H, N_k).

    entropy, max_weight and argmax are those of the forward pass (see AttentionStatistics), (B, H, N_q). call counts the
    calls made inside the module since the record began, from 0.
    """

    module: str
    call: int
    causal: bool
    rows: RowStatistics
    columns: ColumnStatistics
    entropy: Tensor
    max_weight: Tensor
    argmax: Tensor


@dataclass
class Record:
    """What the backward passes inside a `record_dynamics` block have left, in the order of the forward calls.

    `record[name]` lists the calls made inside the module of that name ("" outside any module). A call whose output
    received no gradient leaves nothing.
    """

    found: dict[tuple[str, int], LayerDynamics] = field(default_factory=dict)
    order: list[tuple[str, int]] = field(default_factory=list)

    def __getitem__(self, module: str) -> list[LayerDynamics]:
        calls = [self.found[key] for key in self.order if key[0] == module and key in self.found]
        if not calls:
            raise KeyError(f"no attention call recorded inside module {module!r}; there are {self.modules()}")
        return calls

    def __iter__(self) -> Iterator[LayerDynamics]:
        return (self.found[key] for key in self.order if key in self.found)

    def __len__(self) -> int:
        return len(self.found)

    def modules(self) -> list[str]:
        """Names of the modules with recorded calls, in the order of their first call."""
        return list(dict.fromkeys(key[0] for key in self.order if key in self.found))

    def clear(self) -> None:
        """Forget everything, so that a loop can read one step at a time."""
        self.found.clear()
        self.order.clear()

    def expect(self, module: str, causal: bool) -> Receiver:
        """A receiver for the statistics of the call that is being made inside `module`."""
        call = sum(key[0] == module for key in self.order)
        key = (module, call)
        self.order.append(key)

        def receive(rows: RowStatistics, columns: ColumnStatistics, routing: tuple[Tensor, ...]) -> None:
            self.found[key] = LayerDynamics(
                module,
                call,
                causal,
                RowStatistics(*(x.detach() for x in rows)),
                ColumnStatistics(*(x.detach() for x in columns)),
                *(x.detach() for x in routing),
            )

        return receive


@dataclass
class _Active:
    record: Record
    inside: list[str] = field(default_factory=list)


_active: _Active | None = None


@contextmanager
def record_dynamics(model: nn.Module) -> Iterator[Record]:
    """Collect row and column statistics of every attention layer of `model`, with no second pass.

    Inside the block each backward pass through `attention` also keeps, for every call, E_α[b], Var_α[b], Σ_j (∂L/∂s)²
    per row and R_j, G_j, Σ_i |∂L/∂s|, ‖∂L/∂v_j‖ per key, beside the routing entropy of its forward pass, under the
    name of the innermost module that made the call (`blocks.0.attn`); backward may also come
    after the block, for forward passes made inside it.
    Raises RuntimeError when nested, when attention is called under torch.func transforms, or in a compiled graph.
    """
    global _active
    if _active is not None:
        raise RuntimeError("record_dynamics is active already; blocks cannot be nested")
    active = _Active(Record())
    hooks = []
    for name, module in model.named_modules():
        hooks.append(module.register_forward_pre_hook(functools.partial(_enter, active, name)))
        hooks.append(module.register_forward_hook(functools.partial(_leave, active), always_call=True))
    _active = active
    try:
        yield active.record
    finally:
        _active = None
        for hook in hooks:
            hook.remove()


def _enter(active: _Active, name: str, module: nn.Module, args: object) -> None:
    active.inside.append(name)


def _leave(active: _Active, module: nn.Module, args: object, output: object) -> None:
    active.inside.pop()


def receiver(q: Tensor, causal: bool) -> Receiver | None:
    """What takes the statistics of the attention call being made, or None where nothing is recorded."""
    if _active is None:
        return None
    if torch.compiler.is_compiling():
        raise RuntimeError("record_dynamics cannot see into a compiled model; call the original model inside the block")
    if torch._C._functorch.is_functorch_wrapped_tensor(q):
        raise RuntimeError("record_dynamics cannot record under torch.func transforms; use .backward() instead")
    return _active.record.expect(_active.inside[-1] if _active.inside else "", causal)


def refuse_while_recording(what: str) -> None:
    """Raises where a record is being made: `what` does not run on a kernel that knows the statistics."""
    if _active is not None:
        raise RuntimeError(f"record_dynamics cannot record {what}")
