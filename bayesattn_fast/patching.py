"""Send other packages' Mamba through this package's kernels: `patch()`, and back again with `unpatch()`.

Replaces functions by name in modules of mamba_ssm, causal_conv1d and transformers (those whose Mamba calls module-level
functions: transformers ≥ 5). The models, their weights and their state dicts are untouched.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from .ops.causal_conv1d import WIDTHS, causal_conv1d_fn, causal_conv1d_update
from .ops.selective_scan import selective_scan_fn, selective_state_update

PACKAGES = ("mamba_ssm", "causal_conv1d", "transformers")
# Compiled halves of mamba_ssm and causal_conv1d: where they were not built, a stand-in lets the Python half import.
COMPILED = ("selective_scan_cuda", "causal_conv1d_cuda")
SILU = (None, "silu", "swish")
_replaced: list[tuple[ModuleType, str, Any]] = []


def mamba_inner_fn(
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    A: Tensor,
    B: Tensor | None = None,
    C: Tensor | None = None,
    D: Tensor | None = None,
    delta_bias: Tensor | None = None,
    B_proj_bias: Tensor | None = None,
    C_proj_bias: Tensor | None = None,
    delta_softplus: bool = True,
    checkpoint_lvl: int = 1,
    b_rms_weight: Tensor | None = None,
    c_rms_weight: Tensor | None = None,
    dt_rms_weight: Tensor | None = None,
    b_c_dt_rms_eps: float = 1e-6,
) -> Tensor:
    """mamba-ssm's fused block, from the same kernels: xz (B, 2·d_inner, L) → (B, L, d_model).

    checkpoint_lvl, which says what mamba-ssm recomputes, has no meaning here. Raises NotImplementedError for the RMS
    norms of B, C and Δ."""
    norms = {"b_rms_weight": b_rms_weight, "c_rms_weight": c_rms_weight, "dt_rms_weight": dt_rms_weight}
    if given := [name for name, value in norms.items() if value is not None]:
        raise NotImplementedError(f"mamba_inner_fn of bayesattn_fast has no norms; got {', '.join(given)}")
    x, z = xz.chunk(2, 1)
    x = _tensor(causal_conv1d_fn(x, conv1d_weight.squeeze(1), conv1d_bias, activation="silu"))
    rank, states = delta_proj_weight.shape[1], A.shape[-1]
    dt, in_B, in_C = F.linear(x.transpose(1, 2), x_proj_weight).split([rank, states, states], -1)
    if B is None:
        B = (in_B if B_proj_bias is None else in_B + B_proj_bias).transpose(1, 2)
    if C is None:
        C = (in_C if C_proj_bias is None else in_C + C_proj_bias).transpose(1, 2)
    delta = F.linear(dt, delta_proj_weight).transpose(1, 2)
    y = _tensor(selective_scan_fn(x, delta, A, B, C, D, z, delta_bias, delta_softplus))
    return F.linear(y.transpose(1, 2), out_proj_weight, out_proj_bias)


def _tensor(result: Tensor | tuple[Tensor, Tensor]) -> Tensor:
    return result[0] if isinstance(result, tuple) else result


def _conv_of_transformers(original: Callable[..., Any]) -> Callable[..., Any]:
    def convolve(
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        seq_idx: Tensor | None = None,
        **rest: Any,
    ) -> Any:
        if weight.shape[-1] not in WIDTHS or activation not in SILU or rest.get("cu_seqlens") is not None:
            return original(hidden_states, weight, bias, activation=activation, seq_idx=seq_idx, **rest)
        return causal_conv1d_fn(hidden_states, weight, bias, seq_idx=seq_idx, activation=activation)

    return convolve


def _conv_step_of_transformers(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(
        hidden_states: Tensor,
        conv_state: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **rest: Any,
    ) -> Any:
        if weight.shape[-1] not in WIDTHS or activation not in SILU:
            return original(hidden_states, conv_state, weight, bias, activation=activation, **rest)
        return causal_conv1d_update(hidden_states, conv_state, weight, bias, activation)

    return step


def _scan_of_transformers(original: Callable[..., Any]) -> Callable[..., Any]:
    def scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        z: Tensor | None = None,
        delta_bias: Tensor | None = None,
        delta_softplus: bool = False,
        return_last_state: bool = False,
        **choice_of_plain_path: Any,
    ) -> Any:
        return selective_scan_fn(hidden_states, dt, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)

    return scan


def _scan_step_of_transformers(original: Callable[..., Any]) -> Callable[..., Any]:
    def step(
        state: Tensor,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        dt_softplus: bool = False,
        z: Tensor | None = None,
        **rest: Any,
    ) -> Any:
        return selective_state_update(state, hidden_states, dt, A, B, C, D, z, dt_bias, dt_softplus)

    return step


def _no_fused_block(original: Callable[..., Any]) -> Callable[..., Any]:
    """transformers takes None as "not fused here" and goes on function by function, that is through ours."""
    return lambda *args, **options: None


def _always(ours: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda original: ours


MAMBA_SSM = {
    "selective_scan_fn": _always(selective_scan_fn),
    "mamba_inner_fn": _always(mamba_inner_fn),
    "selective_state_update": _always(selective_state_update),
    "causal_conv1d_fn": _always(causal_conv1d_fn),
    "causal_conv1d_update": _always(causal_conv1d_update),
}
TRANSFORMERS = {
    "mamba_selective_scan": _scan_of_transformers,
    "mamba_selective_state_update": _scan_step_of_transformers,
    "causal_conv1d_fn": _conv_of_transformers,
    "causal_conv1d_update": _conv_step_of_transformers,
    "mamba_inner_fn": _no_fused_block,
}
TARGETS: dict[str, tuple[tuple[str, ...], dict[str, Callable[..., Any]]]] = {
    "mamba_ssm": (("mamba_ssm.ops.selective_scan_interface", "mamba_ssm.modules.mamba_simple"), MAMBA_SSM),
    "causal_conv1d": (("causal_conv1d.causal_conv1d_interface", "causal_conv1d"), MAMBA_SSM),
    "transformers": (
        tuple(f"transformers.models.{name}.modeling_{name}" for name in ("mamba", "falcon_mamba", "jamba")),
        TRANSFORMERS,
    ),
}


def _import(name: str) -> ModuleType:
    """Import a module; compiled halves that were not built are stood in for, and say so when they are called."""
    stood_in = [n for n in COMPILED if n not in sys.modules and importlib.util.find_spec(n) is None]
    for compiled in stood_in:
        sys.modules[compiled] = _StandIn(compiled)
    try:
        return importlib.import_module(name)
    finally:
        for compiled in stood_in:
            sys.modules.pop(compiled, None)


class _StandIn(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*args: Any, **options: Any) -> None:
            raise RuntimeError(f"{self.__name__}.{name} was not built on this machine; call bayesattn_fast.patch()")

        return refuse


def patch(*packages: str) -> list[str]:
    """Route the Mamba functions of the named packages (all that are installed, if none is named) to this package's.

    Packages: "mamba_ssm", "causal_conv1d", "transformers". Returns the dotted names that were replaced; doing it twice
    replaces nothing more. Convolutions wider than 4 and activations other than SiLU stay with transformers.
    Raises ValueError for an unknown package; RuntimeError where a named one does not import or has nothing to replace.
    """
    if unknown := [name for name in packages if name not in TARGETS]:
        raise ValueError(f"packages must be among {', '.join(PACKAGES)}; got {', '.join(unknown)}")
    done: list[str] = []
    for package in packages or tuple(name for name in PACKAGES if importlib.util.find_spec(name) is not None):
        names, functions = TARGETS[package]
        modules = []
        for name in names:
            try:
                modules.append(_import(name))
            except Exception as error:
                if packages:
                    raise RuntimeError(f"cannot patch {package}: importing {name} failed: {error}") from error
        # Only once all are imported: a module that copies a function on import must copy the original.
        found = [(module, function) for module in modules for function in functions if hasattr(module, function)]
        if packages and not found:
            raise RuntimeError(f"cannot patch {package}: none of {', '.join(functions)} is in {', '.join(names)}")
        done += [f"{m.__name__}.{function}" for m, function in found if _replace(m, function, functions[function])]
    return done


def _replace(module: ModuleType, name: str, make: Callable[..., Any]) -> bool:
    if any(m is module and n == name for m, n, _ in _replaced):
        return False
    original = getattr(module, name)
    _replaced.append((module, name, original))
    setattr(module, name, make(original))
    return True


def unpatch() -> None:
    """Put back every function that `patch` replaced."""
    while _replaced:
        module, name, original = _replaced.pop()
        setattr(module, name, original)
