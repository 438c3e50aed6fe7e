"""How weights are stored: bytes of a model's tensors in a type, or quantised with their scales and zero points."""

from __future__ import annotations

from dataclasses import dataclass

from hwmodels.errors import ConfigError
from workloads.checks import check_choice, check_flag, check_integer
from workloads.dtypes import BYTES
from workloads.gemm import MAX_DIMENSION
from workloads.models.model import Model
from workloads.models.tensors import Tensor, layer_tensors, outer_tensors
from workloads.packing import POSITION_BITS, SPARSE_GROUP, SPARSE_KEPT

WHERE = "weight format"
DTYPES = ("fp32", "fp16", "bf16", "fp8_e4m3", "fp8_e5m2")
BITS = (4, 8)


@dataclass(frozen=True)
class WeightFormat:
    """`dtype`: of every weight that is not quantised. `bits`: of those of linear layers, if they are quantised: the
    matrices of attention and feed-forward, and with `head` an untied head's; never embeddings, norms, biases, routers.

    Each `group` inputs of one output share a scale of type `scale_dtype` and a zero point of `zero_bits` (0: none,
    symmetric); group None: all inputs of one output.

    The same matrices may have two of every four weights left with two bits each that say where they stood
    (`sparse_24`), be the product of two factors (`low_rank`), or have low-rank adapters beside them, `lora_adapters`
    of `lora_rank`, of type `dtype`.

    Raises `ConfigError` for a value outside its range.
    """

    dtype: str = "bf16"
    bits: int | None = None
    group: int | None = None
    scale_dtype: str = "bf16"
    zero_bits: int = 0
    head: bool = False
    sparse_24: bool = False
    low_rank: int | None = None
    lora_rank: int | None = None
    lora_adapters: int = 1

    def __post_init__(self) -> None:
        check_choice("dtype", self.dtype, DTYPES, WHERE)
        check_choice("scale_dtype", self.scale_dtype, ("fp32", "fp16", "bf16"), WHERE)
        check_flag("head", self.head, WHERE)
        check_flag("sparse_24", self.sparse_24, WHERE)
        check_integer("lora_adapters", self.lora_adapters, 1, MAX_DIMENSION, WHERE)
        for name in ("low_rank", "lora_rank"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1, MAX_DIMENSION, WHERE)
        check_integer("zero_bits", self.zero_bits, 0, 32, WHERE)
        if self.group is not None:
            check_integer("group", self.group, 1, MAX_DIMENSION, WHERE)
        if self.bits is not None and (type(self.bits) is not int or self.bits not in BITS):
            raise ConfigError(f"bits = {self.bits!r}: must be 4 or 8, or None for weights as they are ({WHERE})")
        if self.bits is None and (self.group is not None or self.zero_bits or (self.head and not self.sparse_24)):
            raise ConfigError(f"group, zero_bits and head need bits, which is None ({WHERE})")


FORMATS = {
    **{dtype: WeightFormat(dtype) for dtype in ("fp32", "fp16", "bf16")},
    "fp8": WeightFormat(bits=8, scale_dtype="fp32"),
    "int8": WeightFormat(bits=8),
    "int4": WeightFormat(bits=4, group=128, zero_bits=16),
}
"""Usual ones: fp8 and int8 with a scale for each output; int4 as PyTorch packs it, a bf16 scale and zero point for each
128 inputs."""


def weight_format(which: str | WeightFormat) -> WeightFormat:
    """A format by its name in `FORMATS`, or as given. Raises `ConfigError` for an unknown name."""
    if isinstance(which, WeightFormat):
        return which
    check_choice("weights", which, tuple(FORMATS), WHERE)
    return FORMATS[which]


def tensor_bytes(tensor: Tensor, stored: WeightFormat) -> int:
    """Bytes of one tensor with its scales and zero points, positions, or adapters; each is filled up to whole bytes."""
    if not _is_matrix(tensor, stored):
        return tensor.size * BYTES[stored.dtype]
    n_out, n_in = tensor.shape
    thin = (n_out + n_in) * BYTES[stored.dtype]
    adapters = stored.lora_adapters * (stored.lora_rank or 0) * thin if tensor.part != "head" else 0
    if stored.low_rank is not None:
        return stored.low_rank * thin + adapters
    return _value_bytes(tensor, stored) + _scale_bytes(tensor, stored) + adapters


def _value_bytes(tensor: Tensor, stored: WeightFormat) -> int:
    """Of all values, or of those kept and their positions."""
    bits = 8 * BYTES[stored.dtype] if stored.bits is None else stored.bits
    if not stored.sparse_24:
        return -(-tensor.size * bits // 8)
    n_out, n_in = tensor.shape
    kept = -(-n_in * SPARSE_KEPT // SPARSE_GROUP)
    return n_out * (-(-kept * bits // 8) + -(-kept * POSITION_BITS // 8))


def _scale_bytes(tensor: Tensor, stored: WeightFormat) -> int:
    """Of scales and zero points."""
    if stored.bits is None:
        return 0
    n_out, n_in = tensor.shape
    n_groups = n_out * -(-n_in // (stored.group or n_in))
    return n_groups * BYTES[stored.scale_dtype] + -(-n_groups * stored.zero_bits // 8)


def weight_bytes(model: Model, which: str | WeightFormat = "bf16") -> dict[str, int]:
    """Bytes of all weights by part (`counts.Parameters` names them)."""
    stored = weight_format(which)
    total = dict.fromkeys(("embedding", "positions", "attention", "ffn", "router", "norms", "head"), 0)
    for tensors, times in ((outer_tensors(model), 1), (layer_tensors(model), model.n_layers)):
        for tensor in tensors:
            total[tensor.part] += times * tensor_bytes(tensor, stored)
    return total


def product_weight_bytes(model: Model, which: str | WeightFormat = "bf16") -> int:
    """Bytes of the weights that products take, without those that are gathered or applied element by element: tables
    (but a tied one, which the head multiplies with), positions, norms, biases."""
    stored, n_layers = weight_format(which), model.n_layers
    groups = ((outer_tensors(model), 1), (layer_tensors(model), n_layers))
    return sum(n * tensor_bytes(each, stored) for group, n in groups for each in group if _is_multiplied(model, each))


def _is_multiplied(model: Model, tensor: Tensor) -> bool:
    if len(tensor.shape) != 2 or tensor.name in ("token_types.weight", "positions.weight"):
        return False
    return tensor.name != "embedding.weight" or model.tied


def layer_weight_bytes(model: Model, which: str | WeightFormat = "bf16") -> int:
    """Bytes of one layer's weights: what is streamed when layers come from host memory one by one."""
    stored = weight_format(which)
    return sum(tensor_bytes(tensor, stored) for tensor in layer_tensors(model))


def _is_matrix(tensor: Tensor, stored: WeightFormat) -> bool:
    """Whether it is one of those that the format is for."""
    if len(tensor.shape) != 2:
        return False
    return tensor.part in ("attention", "ffn") or (stored.head and tensor.name == "head.weight")
