"""Tensors out of a safetensors file. No pickle is read."""

from __future__ import annotations

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor


class WeightsError(ValueError):
    """Bytes that are no usable safetensors file; the text says why."""


def tensors(data: bytes) -> dict[str, Tensor]:
    """Return the tensors by name. Raises WeightsError.

    safetensors checks the header against the size of the file, so a header cannot claim more memory than the file has.
    """
    try:
        return load(data)
    except (SafetensorError, ValueError, RuntimeError, AssertionError) as error:
        raise WeightsError(str(error)) from error
    except (KeyError, TypeError) as error:  # of types that torch, or this version of safetensors, does not have
        raise WeightsError(f"a tensor of type {error}, which is not known here") from error
