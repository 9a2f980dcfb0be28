"""Other implementations of the selective scan, each as one function of the same tensors, or the reason it is missing.

All compute out of (u, delta, A, B, C, D, delta_bias) with softplus, without z: what every one of them can do.
"""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

Scan = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def unbind_loop(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, bias: Tensor) -> Tensor:
    """The best plain PyTorch form: everything but the recurrence at once, then a loop over slices of time."""
    step = F.softplus(delta + bias[:, None])
    by_time = step.permute(2, 0, 1)
    decays = torch.exp(by_time.unsqueeze(-1) * A).unbind(0)
    drives = ((by_time * u.permute(2, 0, 1)).unsqueeze(-1) * B.permute(2, 0, 1).unsqueeze(2)).unbind(0)
    h, rows = torch.zeros_like(drives[0]), []
    for decay, drive, c in zip(decays, drives, C.permute(2, 0, 1).unsqueeze(-1).unbind(0), strict=True):
        h = torch.addcmul(drive, decay, h)
        rows.append(torch.matmul(h, c).squeeze(-1))
    return torch.stack(rows, -1) + D[:, None] * u


def formula(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, bias: Tensor) -> Tensor:
    """mamba-ssm's reference formula: (B, D, L, N) decays and drives first, then a loop that reads slices of them."""
    step = F.softplus(delta + bias[:, None])
    decays = torch.exp(torch.einsum("bdl,dn->bdln", step, A))
    drives = torch.einsum("bdl,bnl,bdl->bdln", step, B, u)
    h, rows = u.new_zeros(*u.shape[:2], A.shape[1]), []
    for t in range(u.shape[-1]):
        h = decays[:, :, t] * h + drives[:, :, t]
        rows.append(torch.einsum("bdn,bn->bd", h, C[:, :, t]))
    return torch.stack(rows, -1) + D[:, None] * u


def _mamba_ssm() -> Scan:
    """mamba-ssm's own reference; its package needs its compiled half to import, so the module is loaded beside it."""
    spec = importlib.util.find_spec("mamba_ssm")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("mamba_ssm is not installed")
    root = Path(next(iter(spec.submodule_search_locations)))
    added = {"selective_scan_cuda": ModuleType("selective_scan_cuda")}
    for name in ("mamba_ssm", "mamba_ssm.ops"):
        added[name] = ModuleType(name)
        added[name].__path__ = [str(root.joinpath(*name.split(".")[1:]))]
    before = dict(sys.modules)
    sys.modules.update(added)
    try:
        reference = importlib.import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_ref
    finally:
        # Leave no half of it behind: transformers would take it for an installation.
        for name in [n for n in sys.modules if n.startswith(("mamba_ssm", "selective_scan_cuda"))]:
            del sys.modules[name]
        sys.modules.update(before)
    return lambda u, delta, A, B, C, D, bias: reference(u, delta, A, B, C, D, None, bias, True)


def _mambapy() -> Scan:
    """mambapy's parallel scan: (B, L, D, N) decays and drives."""
    pscan = importlib.import_module("mambapy.pscan").pscan

    def scan(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, bias: Tensor) -> Tensor:
        step = F.softplus(delta + bias[:, None]).transpose(1, 2)
        x = u.transpose(1, 2)
        decays = torch.exp(step.unsqueeze(-1) * A)
        drives = (step * x).unsqueeze(-1) * B.transpose(1, 2).unsqueeze(2)
        h = pscan(decays, drives)
        return ((h @ C.transpose(1, 2).unsqueeze(-1)).squeeze(3) + D * x).transpose(1, 2)

    return scan


def _transformers() -> Scan:
    """transformers' own path without extra kernels (version 5)."""
    scan = importlib.import_module("transformers.models.mamba.modeling_mamba").mamba_selective_scan
    return lambda u, delta, A, B, C, D, bias: scan(u, delta, A, B, C, D=D, delta_bias=bias, delta_softplus=True)


PEERS: dict[str, Callable[[], Scan]] = {
    "unbind loop": lambda: unbind_loop,
    "mamba-ssm": _mamba_ssm,
    "mambapy": _mambapy,
    "transformers": _transformers,
}


@functools.cache
def _loaded() -> tuple[dict[str, Scan], dict[str, str]]:
    found: dict[str, Scan] = {}
    missing: dict[str, str] = {}
    for name, make in PEERS.items():
        try:
            found[name] = make()
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
    if "mamba-ssm" in missing:  # its own code takes the place of its formula where there is any
        found["mamba-ssm formula"] = formula
    return found, missing


def load() -> tuple[dict[str, Scan], dict[str, str]]:
    """The peers that import here, and why the others do not."""
    found, missing = _loaded()
    return dict(found), dict(missing)
