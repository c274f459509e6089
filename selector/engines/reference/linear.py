"""Linear layers with weights packed for the processor.

All products of the embedded model for one token took 57 ms as `nn.Linear` and 34-36 ms packed, on 2 x86 cores in one
interleaved run (fp32, torch 2.13, medians of 12). Two rows took 41 ms and six 30 ms, so fewer rows are filled up to
six: 31 ms for one. A pass of up to six rows then always runs the same kernel, whatever its width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

#: Rows a product is filled up to: the narrowest that the packed kernel is fast at.
MIN_ROWS = 6


class PackedLinear(nn.Module):
    """`nn.Linear` for inference with its weight reordered once by oneDNN; same result up to rounding."""

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        weight = source.weight.detach()
        self.in_features, self.out_features = source.in_features, source.out_features
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.bias = None if source.bias is None else source.bias.detach()
        self.filled = weight.new_zeros((MIN_ROWS, source.in_features))

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        rows = x.numel() // self.in_features
        if rows >= MIN_ROWS:
            return self._product(x)
        self.filled[:rows] = x.reshape(rows, self.in_features)  # what the other rows hold is not read
        return self._product(self.filled)[:rows].view(*x.shape[:-1], self.out_features)

    def _product(self, x: Tensor) -> Tensor:
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
