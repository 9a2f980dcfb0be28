"""Run functions of the Triton kernels in a process of their own, under Triton's interpreter.

TRITON_INTERPRET must be set before Triton is first imported, and tests that compile need it unset: so the interpreter
lives in one child process, started on first use and kept.

    result, launches = interpreted("bayesattn_fast.kernels.attention.forward", "forward", q, k, v, causal=True, …)

calls there what would run on a GPU, and returns what it returned together with the launches it made. Exceptions come
back as they are. Tensors cross with their strides, so views stay views.
"""

import atexit
import functools
import importlib
import importlib.util
import os
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy
import pytest


def interpreted(module: str, function: str, *arguments: Any, **keywords: Any) -> tuple[Any, list[Any]]:
    """Call <module>.<function> in the interpreter: (result, list of launch.Launch). Module: any importable name."""
    if reason := _unusable():
        pytest.skip(reason)
    request = pickle.dumps((module, function, arguments, keywords))
    return pickle.loads(_child().submit(_serve, request).result())


def only_result(module: str, function: str, *arguments: Any, **keywords: Any) -> Any:
    """`interpreted` without the launches."""
    return interpreted(module, function, *arguments, **keywords)[0]


@functools.cache
def _unusable() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    from importlib.metadata import version

    triton = tuple(int(part) for part in version("triton").split(".")[:2])
    if triton < (3, 7) and numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0":
        return "the interpreter of Triton 3.6 cannot take loop bounds known at run time under NumPy 2.4"
    return None


@functools.cache
def _child() -> ProcessPoolExecutor:
    child = ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn"), initializer=_start)
    atexit.register(child.shutdown, cancel_futures=True)
    return child


def _start() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    torch.set_num_threads(1)


def _serve(request: bytes) -> bytes:
    module, function, arguments, keywords = pickle.loads(request)
    from bayesattn_fast.kernels._triton import launch

    assert launch.INTERPRETED, "Triton was imported before TRITON_INTERPRET was set"
    call = getattr(importlib.import_module(module), function)
    with launch.recorded() as launches:
        result = call(*arguments, **keywords)
    # A configuration may hold Triton types, which do not pickle.
    return pickle.dumps((result, [made._replace(config=None) for made in launches]))
