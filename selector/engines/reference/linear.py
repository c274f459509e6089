"""Linear layers with weights packed for the processor.

On 2 x86 cores the plain fp32 product of a few rows with a (1536, 576) weight reached 5-8 GB/s and the packed one
13-20 GB/s (torch 2.13, medians of 15), so decoding spends a third of the time. docs/benchmarks holds the figures.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """`nn.Linear` for inference with its weight reordered once by oneDNN; same result up to rounding."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = source.in_features, source.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(source.weight.detach())
        self.bias = None if source.bias is None else source.bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


def packing_available(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this build of torch can pack; the operator is private, so one product is tried and compared."""
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    try:
        layer = nn.Linear(32, 16, bias=False, dtype=dtype)
        x = torch.ones(1, 3, 32, dtype=dtype)
        return torch.allclose(PackedLinear(layer)(x), layer(x), atol=0.05)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def pack_linears(model: nn.Module, dtype: torch.dtype, device: torch.device) -> int:
    """Replace every `nn.Linear` in place; returns how many were packed (0 where packing is not available)."""
    if not packing_available(dtype, device):
        return 0
    count = 0
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:
                setattr(module, name, PackedLinear(child))
                count += 1
    return count
