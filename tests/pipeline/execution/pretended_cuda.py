"""A CUDA device that a CPU pretends to be: which tensors would lie there, what would mix devices, what would wait.

Storages are tagged as the device's. A function mode answers for ``.device`` and moves (which only tag), a dispatch mode
looks at every operation: tensors of both devices, or the generator of the other one, are a fault, as torch would raise
it; kernels, copies and waits for the device are counted. It knows nothing of cuDNN, memory, streams and autocast.
"""

from __future__ import annotations

import traceback
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")
ROOT = Path(__file__).resolve().parents[3]
VIEWS = frozenset(
    ("detach", "view", "alias", "t", "transpose", "permute", "expand", "slice", "select", "unsqueeze", "squeeze",
     "unbind", "as_strided", "split", "split_with_sizes", "_unsafe_view", "_local_scalar_dense", "_reshape_alias",
     "unfold", "chunk", "narrow", "lift_fresh")
)  # fmt: skip
"""Operations without a kernel."""
WAIT_FOR_A_SIZE = frozenset(("nonzero", "masked_select", "unique_dim", "_unique2"))
INDEXED = frozenset(("index", "index_put", "index_put_", "_index_put_impl_"))


class PretendedCuda:
    """A context in which ``tensor.to("cuda:0")`` works, on tags."""

    def __init__(self) -> None:
        self.tagged: dict[int, StorageWeakRef] = {}
        self.counts = Counter[str]()
        """``kernels``, ``copies`` between the devices, and ``waits`` for this one."""
        self.faults = Counter[str]()
        """Place and what torch would refuse there."""
        self.seeds_here = set[int]()
        """Seeds of generators on this device."""

    def __enter__(self) -> PretendedCuda:
        self.stack = ExitStack()
        self.stack.enter_context(_Functions(self))
        self.stack.enter_context(_Operations(self))
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    def holds(self, value: object) -> bool:
        """Return whether a tensor lies on this device."""
        found = self.tagged.get(value.untyped_storage()._cdata) if isinstance(value, Tensor) else None
        return found is not None and not found.expired()

    def tag(self, tensor: Tensor) -> Tensor:
        self.tagged[tensor.untyped_storage()._cdata] = StorageWeakRef(tensor.untyped_storage())
        return tensor

    def untag(self, tensor: Tensor) -> Tensor:
        self.tagged.pop(tensor.untyped_storage()._cdata, None)
        return tensor

    def move(self, tensor: Tensor, device: torch.device) -> Tensor:
        there = device.type == "cuda"
        if self.holds(tensor) == there:
            return tensor
        self.counts["copies"] += 1
        self.counts["waits"] += not there
        return (self.tag if there else self.untag)(tensor.clone())

    def generator(self, device: torch.device | str = "cpu") -> _Generator:
        """Return what ``torch.Generator`` would."""
        return _Generator(self, torch.device(device).type == "cuda")

    def fault(self, what: str) -> None:
        frames = [f for f in traceback.extract_stack() if _is_ours(Path(f.filename))]
        where = f"{Path(frames[-1].filename).relative_to(ROOT)}:{frames[-1].lineno}" if frames else "?"
        self.faults[f"{where}: {what}"] += 1


def _is_ours(file: Path) -> bool:
    return file.is_relative_to(ROOT) and "site-packages" not in file.parts and file != Path(__file__)


class _Generator:
    def __init__(self, device: PretendedCuda, there: bool) -> None:
        self.device, self.there = device, there

    def manual_seed(self, seed: int) -> torch.Generator:
        if self.there:
            self.device.seeds_here.add(seed)
        return torch.Generator("cpu").manual_seed(seed)


class _Operations(TorchDispatchMode):
    def __init__(self, device: PretendedCuda) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        there = [self.device.holds(tensor) for tensor in tensors]
        if any(there):
            self.look(func._schema.name.partition("::")[2], leaves, tensors, there)
        out = func(*args, **kwargs)
        if any(there):
            for leaf in tree_leaves(out):
                if isinstance(leaf, Tensor):
                    self.device.tag(leaf)
        return out

    def look(self, name, leaves, tensors, there) -> None:
        counts = self.device.counts
        counts["kernels"] += name not in VIEWS
        counts["waits"] += name in WAIT_FOR_A_SIZE or name == "_local_scalar_dense"
        if name == "copy_":
            counts["copies"] += there[0] != there[1]
        elif name in INDEXED:
            values = zip(tensors[1:], there[1:], strict=True)
            if not there[0] or any(not t and v.dim() and v.is_floating_point() for v, t in values):
                self.device.fault(f"{name} of tensors of two devices")
            counts["waits"] += any(not t and v.dim() for v, t in zip(tensors[1:], there[1:], strict=True))
        elif any(not t and v.dim() for v, t in zip(tensors, there, strict=True)):
            self.device.fault(f"{name} of tensors of two devices")
        generators = [leaf for leaf in leaves if isinstance(leaf, torch.Generator)]
        if any(g.initial_seed() not in self.device.seeds_here for g in generators):
            self.device.fault(f"{name} by a generator of the CPU")


class _Functions(TorchFunctionMode):
    def __init__(self, device: PretendedCuda) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, device = dict(kwargs or {}), self.device
        match getattr(func, "__self__", None):
            case torch.Tensor.device:
                return CUDA if device.holds(args[0]) else CPU
            case torch.Tensor.is_cuda:
                return device.holds(args[0])
            case torch.Tensor.is_cpu:
                return not device.holds(args[0])
        there = bool(args) and device.holds(args[0])
        if func is torch.Tensor.to:
            return self.to(*args, **kwargs)
        if func in (torch.Tensor.cpu, torch.Tensor.cuda):
            return device.move(args[0], CPU if func is torch.Tensor.cpu else CUDA)
        if there and func is torch.Tensor.numpy:
            device.fault("numpy() of a tensor of the device")
        if there and func is torch.Tensor.tolist:
            device.counts["waits"] += 1
        if there and getattr(func, "__name__", "") == "one_hot":  # it asks for the largest
            device.counts["waits"] += 1
            return device.tag(func(device.untag(args[0].clone()), *args[1:], **kwargs))
        if isinstance(kwargs.get("device"), torch.device | str):
            return self.made(func, args, kwargs)
        return func(*args, **kwargs)

    def to(self, tensor, *rest, device=None, dtype=None, non_blocking=False, copy=False):
        for value in rest:
            match value:
                case torch.device() | str():
                    device = value
                case Tensor():
                    device, dtype = (CUDA if self.device.holds(value) else CPU), value.dtype
                case torch.dtype():
                    dtype = value
        if device is not None:
            tensor = self.device.move(tensor, torch.device(device))
        return tensor if dtype is None else torch.Tensor.to(tensor, dtype)

    def made(self, func, args, kwargs):
        """Return a tensor that is made on a device."""
        there = torch.device(kwargs["device"]).type == "cuda"
        generator = kwargs.get("generator")
        if there and generator is not None and generator.initial_seed() not in self.device.seeds_here:
            self.device.fault(f"{getattr(func, '__name__', func)} by a generator of the CPU")
        out = func(*args, **kwargs | {"device": CPU})
        if isinstance(out, Tensor):
            (self.device.tag if there else self.device.untag)(out)
        return out
