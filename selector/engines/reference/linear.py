"""Linear layers with weights packed for the processor.

All products of the embedded model for one token took 57 ms as `nn.Linear` and 34-36 ms packed, on 2 x86 cores in one
interleaved run (fp32, torch 2.13, medians of 12). Two rows took 41 ms and six 30 ms, so fewer rows are filled up to
six: 31 ms for one. A pass of up to six rows then always runs the same kernel, whatever its width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

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
        return self._product(self._filled_up(x, rows))[:rows].view(*x.shape[:-1], self.out_features)

    def _filled_up(self, x: Tensor, rows: int) -> Tensor:
        self.filled[:rows] = x.reshape(rows, self.in_features)  # what the other rows hold is not read
        return self.filled

    def _product(self, x: Tensor, then: str = "none") -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, then, [], "")
        return out

    def gated(self, up: PackedLinear, x: Tensor) -> Tensor:
        """silu(self(x)) * up(x), both done inside the products."""
        rows = x.numel() // self.in_features
        full = x if rows >= MIN_ROWS else self._filled_up(x, rows)
        gate = self._product(full, "swish")
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(full, gate, up.packed, up.bias, "mul")
        return out if rows >= MIN_ROWS else out[:rows].view(*x.shape[:-1], self.out_features)


def gated(gate: nn.Module, up: nn.Module, x: Tensor) -> Tensor:
    """silu(gate(x)) * up(x)."""
    if isinstance(gate, PackedLinear) and isinstance(up, PackedLinear):
        return gate.gated(up, x)
    out: Tensor = functional.silu(gate(x)) * up(x)
    return out


def joined(*layers: nn.Linear) -> nn.Linear:
    """One layer whose outputs are those of all `layers` side by side."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    biases = [weight.new_zeros(n.out_features) if n.bias is None else n.bias.detach() for n in layers]
    has_bias = any(layer.bias is not None for layer in layers)
    one = nn.Linear(weight.shape[1], weight.shape[0], bias=has_bias, device="meta")
    one.weight = nn.Parameter(weight, requires_grad=False)
    if has_bias:
        one.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return one


def packing_available(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether this build of torch can pack; the operator is private, so one product is tried and compared."""
    if device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    try:
        layer = nn.Linear(32, 16, bias=False, dtype=dtype)
        x, packed = torch.ones(1, 3, 32, dtype=dtype), PackedLinear(layer)
        return torch.allclose(packed(x), layer(x), atol=0.05) and torch.allclose(
            packed.gated(packed, x), gated(layer, layer, x), atol=0.05
        )
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
