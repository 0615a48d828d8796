"""Facts about tensors and modules of PyTorch that need no computation."""

from __future__ import annotations

from typing import Any

import torch


def describe(value: Any) -> Any:
    """A tensor as a dictionary; other values as they are."""
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value[:8]]
    if not isinstance(value, torch.Tensor) or value.is_nested:
        return value
    count, sparse = value.numel(), value.layout is not torch.strided
    return {
        "id": id(value),
        "shape": list(value.shape),
        "dtype": str(value.dtype),
        "device": str(value.device),
        "numel": count,
        "nbytes": None if sparse else count * value.element_size(),
        "is_sparse": sparse,
    }


def model_profile(module: Any) -> dict[str, Any]:
    """Numbers of parameters and modules, the longest dimension of a parameter, and the text of the module."""
    lazy = torch.nn.parameter.UninitializedParameter
    parameters = [parameter for parameter in module.parameters() if not isinstance(parameter, lazy)]
    return {
        "params": sum(parameter.numel() for parameter in parameters),
        "max_width": max((length for parameter in parameters for length in parameter.shape), default=0),
        "n_modules": sum(1 for _ in module.modules()),
        "model_repr": repr(module)[:1000],
    }
