"""Memory layout of what the attention kernels return."""

from torch import Tensor


def like_heads(x: Tensor, width: int) -> Tensor:
    """Uninitialised (B, H, N, width) whose memory runs B, N, H where that of x does, else B, H, N."""
    batch, heads, rows = x.shape[:3]
    if x.stride(1) < x.stride(2):
        return x.new_empty((batch, rows, heads, width)).transpose(1, 2)
    return x.new_empty((batch, heads, rows, width))
