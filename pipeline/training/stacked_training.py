"""Local training of several clients of a round as one program: their weights lie side by side, a step is a step of all.

A client of a small network costs Python more than arithmetic. Here the clients' trainers are made one by one, as in
``local_training.fit`` and with the same generators; then their tensors are stacked, and one trainer takes the steps of
all. Its loss is the method's own, under ``torch.vmap``; its optimizers move every weight by its own client's moments.
Afterwards each trainer gets its tensors back, and makes update and memory as ever. So a method needs nothing but a step
that is a program of tensors (``ClientTrainer.replayable``), and what a client sends is what it would send alone, up to
the rounding of sums.

Clients of a stack may differ in rows and steps. A mini-batch is padded to the longest one by rows of weight 0; where
that would change something (rows that couple, methods that train on rows without a label), those with equally many
rows go together. Clients that are done keep their weights.

Shape suffixes: K clients of the stack, by falling number of rows, B rows of a mini-batch, N rows of all clients.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils.rnn import pad_sequence

from anchorfl.models.classifier import Classifier
from anchorfl.models.label_encoder import LanguageHead
from anchorfl.models.stacked import StackedMasks, stack
from anchorfl.pipeline.algorithm.contract import ClientTrainer, Tensors
from anchorfl.pipeline.algorithm.optimizers import SGD, Adam
from anchorfl.pipeline.algorithm.parameters import set_training, state_of_module
from anchorfl.pipeline.config.experiment import Experiment
from anchorfl.pipeline.training.local_training import FitResult, Fitting, TrainingSpec, active_rows, batches, end_fit
from anchorfl.tasks.contract import Batch, ClientData, InputSpec
from anchorfl.tasks.errors import InputError

Own = dict[str, Any]
"""Attributes that clients' trainers do not share, by name: [K, ...], or a dict of such tensors."""
NOT_OWN = frozenset(("ctx", "model", "optimizers", "parameters", "steps"))
"""Attributes of a trainer that are not the method's."""


OTHER_STEPS = "nesterov", "dampening", "amsgrad", "maximize", "decoupled_weight_decay"
"""Options of torch's Adam and SGD that make steps other than those of ``StackedOptimizer``."""


@dataclass(frozen=True)
class Member:
    """A client that is ready for its first step."""

    fitting: Fitting
    data: ClientData
    """Rows to train on."""
    weights: Tensors
    """Weights and buffers that it starts from, in storage of their own."""


class Workspace:
    """The network of one client, and that of a stack, which hold whatever was left in them."""

    def __init__(self, model: Classifier) -> None:
        self.model = model
        self._stacked, self._count = model, 0

    def stacked(self, count: int) -> Classifier:
        """Return the network of so many clients, made anew where the last ones were more or fewer."""
        if count != self._count:
            self._stacked, self._count = self.model, 0  # the old one goes before there is a new one
            self._stacked, self._count = stack(self.model, count), count
        set_training(self._stacked)
        return self._stacked


SMALL = 50_000
"""Weights of a network up to which stacks pay: on a CPU a step of more is arithmetic, not Python, and on a GPU clients
train side by side without them."""
MOST = 64
"""Clients of a stack at most where its size is not given: what is gained by more is less than their memory."""


def stack_size(experiment: Experiment, model: Classifier, spec: InputSpec) -> int:
    """Return the size of a run's stacks, at least 1. InputError where it asks for stacks that cannot be."""
    size, optimizer = experiment.federation.stack, experiment.optimizer
    language = isinstance(model.head, LanguageHead)
    wrong = {
        f"another method than {experiment.method.name!r}": not experiment.method.stackable,
        "an input that is not sparse": spec.kind == "sparse",
        f"another network than {experiment.model.network!r}, a plug-in's": not model.replayable and not language,
        "class_embeddings.lora_rank = 0": language,
        "optimizer.precision = 'float32'": optimizer.precision != "float32",
        "optimizer.onednn = False": optimizer.onednn,
        "optimizer.microbatch_tokens = 0 for rows with a length (dropout masks of a mini-batch are drawn at once)":
            spec.kind in ("tokens", "series") and optimizer.microbatch_tokens > 0,
    }  # fmt: skip
    needs = [what for what, is_wrong in wrong.items() if is_wrong]
    if size > 1 and needs:
        raise InputError(f"federation.stack = {size} needs {'; '.join(needs)}; or set it to 1")
    if size:
        return size
    pays = sum(p.numel() for p in model.parameters()) <= SMALL
    return min(MOST, experiment.selected_clients) if pays and not needs else 1


def check_trainer(trainer: ClientTrainer[Any, Any]) -> None:
    """Raise InputError where the steps of such a trainer cannot be stacked."""
    kind = type(trainer)
    if not trainer.replayable or kind.gradients is not ClientTrainer.gradients:
        raise InputError(
            f"federation.stack: {kind.__name__} has steps of its own that are not the same program of tensors for all"
            " clients (replayable, in pipeline/algorithm/contract.py): set it to 1"
        )
    for optimizer in trainer.optimizers.values():
        (group, *others), of = optimizer.param_groups, type(optimizer)
        if others or of not in (Adam, SGD, torch.optim.Adam, torch.optim.SGD) or any(map(group.get, OTHER_STEPS)):
            raise InputError(
                f"federation.stack: {kind.__name__} has an optimizer ({of.__name__}) that is not torch's Adam or SGD"
                f" with one group of parameters and without {', '.join(OTHER_STEPS)}: set it to 1"
            )


def groups_of(members: Sequence[Member], size: int) -> Iterator[list[Member]]:
    """Yield members that can be one stack, by falling number of rows, at most ``size`` each."""
    alike: dict[Hashable, list[Member]] = {}
    for member in sorted(members, key=lambda m: -len(m.data)):
        alike.setdefault(_kind(member.fitting.trainer), []).append(member)
    for group in alike.values():
        for start in range(0, len(group), size):
            yield group[start : start + size]


class Stack:
    """Clients of a round whose steps are one program: made, trained, asked for each one's result, dropped."""

    def __init__(self, training: TrainingSpec, workspace: Workspace, members: Sequence[Member]) -> None:
        """members: one of ``groups_of``."""
        self._began = time.perf_counter()
        self.training, self.members = training, members
        self.trainers = [member.fitting.trainer for member in members]
        self.rows = [member.data for member in members]
        self.workspace, self.model = workspace.model, workspace.stacked(len(members))
        first = self.trainers[0]
        self.device = first.parameters[0].device
        self.state = state_of_module(self.model)
        for name, value in self.state.items():
            torch.stack([member.weights[name] for member in members], out=value)
        self.pads = type(first).active is ClientTrainer.active and not self.model.couples_rows
        self.active = len(members)
        """Clients that take the next step: the first of the stack."""
        self.losses = [0.0] * len(members)
        self.seconds = 0.0
        with torch.no_grad():
            without = {trainer.penalty() is None for trainer in self.trainers}
        if len(without) > 1:
            raise InputError("federation.stack: some of the clients have a penalty, and others none: set it to 1")
        self.penalized = False in without

        alone = dict.fromkeys(("card", "data", "memory", "client_message"), _OTHERS)
        ctx = replace(first.ctx, model=self.model, **alone)
        # a trainer that takes the steps of all clients on passes of several, and one that is each of them under vmap
        self.outer = cast(Any, copy.copy(first))
        self.inner = copy.copy(first)
        self.outer.ctx = self.inner.ctx = ctx
        self.outer.model = self.inner.model = self.model
        self.call = _Call(self.inner)
        self.tensors = {
            f"trainer_model.{name}": value
            for name, value in (*self.model.named_parameters(), *self.model.named_buffers())
            if name in self.state
        }
        self.own: Own = {}
        self._join_attributes()
        leaves = dict(zip(map(id, first.model.parameters()), self.model.parameters(), strict=True))
        leaves |= {id(p): q for p, q in zip(_parameters(vars(first)), _parameters(self.own), strict=True)}
        self.outer.parameters = list(leaves.values())
        self.outer.optimizers = {
            name: StackedOptimizer([t.optimizers[name] for t in self.trainers], leaves, self)
            for name in first.optimizers
        }
        self.outer.gradients = self._gradients

    def train(self) -> None:
        """Take all local steps of all clients."""
        outer = self.outer
        for epoch, _ in enumerate(outer.epochs(self.training.epochs)):
            if epoch and outer.refresh == "epoch":
                self._refresh()
            if not epoch or outer.refresh == "epoch":
                self._join_rows()
            plan = self._plan()
            total_K, steps = torch.zeros(len(plan), device=self.device), [len(mine) for mine in plan]
            for step in range(max(steps, default=0)):
                self.active = sum(step < count for count in steps)
                total_K += outer.step(self._passes([mine[step] for mine in plan[: self.active]]))
            for trainer, count in zip(self.trainers, steps, strict=True):
                trainer.steps += count
            self.losses = (total_K.cpu() / torch.tensor(steps).clamp(min=1)).tolist()
        self.active = len(self.members)
        self.seconds = (time.perf_counter() - self._began) / len(self.members)

    def result(self, k: int) -> FitResult[Any]:
        """Return the result of a member after ``train``. UpdateError where its update cannot be merged."""
        trainer = self.trainers[k]
        self._hand_back(k)
        trainer.phase, trainer.refresh = self.outer.phase, self.outer.refresh
        if self.training.optimizer.state == "keep":
            for name, optimizer in self.outer.optimizers.items():
                optimizer.hand_back(k, trainer.optimizers[name])
        return replace(end_fit(trainer, self.losses[k], 0.0), seconds=self.seconds)

    # ---- What is stacked, and handed back.

    def _join_attributes(self) -> None:
        every = [vars(trainer) for trainer in self.trainers]
        own = {name: _joined([mine[name] for mine in every], name) for name in every[0] if name not in NOT_OWN}
        self.own = {name: value for name, value in own.items() if value is not None}
        numbers = [name for name, value in vars(self.trainers[0]).items() if isinstance(value, (int, float))]
        self.own |= {name: self.own[name].to(self.device) for name in numbers if name in self.own}
        vars(self.outer).update(self.own)

    def _hand_back(self, k: int) -> None:
        """Give a trainer its weights, in the work-space, and its tensors."""
        mine = state_of_module(self.workspace)
        torch._foreach_copy_([mine[name] for name in self.state], [value[k] for value in self.state.values()])
        for name, value in self.own.items():
            self._hand_back_attribute(vars(self.trainers[k]), name, value, k)

    def _hand_back_attribute(self, holder: dict[str, Any], name: str, value: Any, k: int) -> None:
        before = holder[name]
        if isinstance(value, dict):
            for key, part in value.items():
                self._hand_back_attribute(before, key, part, k)
        elif isinstance(before, nn.Parameter):
            before.data.copy_(value[k].detach())
        elif isinstance(before, Tensor) and before.shape == value[k].shape:  # one that was padded is only read
            holder[name] = value[k].detach().clone()

    def _refresh(self) -> None:
        """Ask every trainer for its rows anew, with the weights that it has now."""
        for k, trainer in enumerate(self.trainers):
            self._hand_back(k)
            self.rows[k] = trainer.data()
        before = self.own
        self._join_attributes()
        self.own = {name: _with_leaves(value, before.get(name)) for name, value in self.own.items()}
        vars(self.outer).update(self.own)

    # ---- Mini-batches.

    def _join_rows(self) -> None:
        counts = [len(rows) for rows in self.rows]
        self.offset_K = torch.tensor([0, *counts[:-1]]).cumsum(0)
        self.y_NC, self.known_NC, self.weight_NC = (
            torch.cat([getattr(rows, name) for rows in self.rows]) for name in ("y_NC", "known_NC", "weight_NC")
        )
        lengths = [rows.length_N for rows in self.rows]
        x = [rows.x for rows in self.rows]
        if lengths[0] is not None:  # a client's rows are as long as its own longest one
            x = [_padded(part, max(part.shape[1] for part in x), dim=1) for part in x]
        self.x_N = torch.cat(x)
        self.length_N = None if any(n is None for n in lengths) else torch.cat([n for n in lengths if n is not None])
        self.active_N = [active_rows(trainer, rows) for trainer, rows in zip(self.trainers, self.rows, strict=True)]

    def _plan(self) -> list[list[tuple[Tensor, int]]]:
        """Return each client's mini-batches of an epoch: positions of the rows that are computed, and denominator."""
        options, plan = self.training.optimizer, []
        for member, rows, active_N in zip(self.members, self.rows, self.active_N, strict=True):
            order_N = torch.randperm(len(rows), generator=member.fitting.order_rng)
            parts = batches(order_N, options.batch_size or len(rows), self.model.couples_rows)
            plan.append([(p[active_N[p]] if options.skip_zero_rows else p, len(p)) for p in parts])
        return plan

    def _passes(self, step: Sequence[tuple[Tensor, int]]) -> list[Pass]:
        """Return a step's mini-batches as passes of neighbors; none without a row."""
        rows = [len(index) for index, _ in step]
        if self.pads:
            runs = [(0, len(rows))]
        else:
            cuts = [0, *(k for k in range(1, len(rows)) if rows[k] != rows[k - 1]), len(rows)]
            runs = list(pairwise(cuts))
        return [self._pass(first, step[first:last]) for first, last in runs if any(rows[first:last])]

    def _pass(self, first: int, part: Sequence[tuple[Tensor, int]]) -> Pass:
        last, rows = first + len(part), [len(index) for index, _ in part]
        index_KB = pad_sequence([index for index, _ in part], batch_first=True)
        at_KB = index_KB + self.offset_K[first:last, None]
        shape, at = at_KB.shape, at_KB.flatten().to(self.device, non_blocking=True)
        x, y_KBC, known_KBC, weight_KBC = (
            t.index_select(0, at).view(*shape, *t.shape[1:])
            for t in (self.x_N, self.y_NC, self.known_NC, self.weight_NC)
        )
        if min(rows) < shape[1]:
            real_KB = torch.arange(shape[1]) < torch.tensor(rows)[:, None]
            real_KB1 = real_KB[..., None].to(weight_KBC)
            y_KBC, known_KBC, weight_KBC = y_KBC * real_KB1, known_KBC * real_KB1, weight_KBC * real_KB1
        lengths = None
        if self.length_N is not None:
            lengths = [max(1, int(self.length_N[at_KB[k, :n]].max())) if n else 1 for k, n in enumerate(rows)]
            x = x[:, :, : max(lengths)]
        if self.members[0].fitting.change is not None:
            for k, n in enumerate(rows):
                change = self.members[first + k].fitting.change
                if change is not None and n:
                    x[k, :n] = change(x[k, :n])
        denominator_K = torch.tensor([float(whole) for _, whole in part]).to(self.device, non_blocking=True)
        batch = (self.rows[0].scaling(x), y_KBC, known_KBC, weight_KBC, denominator_K, index_KB.to(self.device))
        return Pass(first, last, rows, lengths, batch)

    # ---- A step.

    def _gradients(self, passes: Iterable[Pass]) -> Tensor:
        """As ``ClientTrainer.gradients``; return the loss of each client [K]."""
        outer, total_K = self.outer, torch.zeros(len(self.members), device=self.device)
        for p in outer.parameters:
            p.grad = None
        for part in passes:
            masks = self.model.masks
            assert isinstance(masks, StackedMasks)
            masks.generators = [member.fitting.mask_rng for member in self.members[part.first : part.last]]
            masks.rows, masks.lengths = part.rows, part.lengths
            self._add_loss(total_K, part.first, part.last, part.batch)
        if self.penalized:
            self._add_loss(total_K, 0, self.active, None)
        for p in outer.parameters:
            if p.grad is None:  # Adam moves, too, where a mini-batch has no labeled row
                p.grad = torch.zeros_like(p)
        outer.correct()
        return total_K

    def _add_loss(self, total_K: Tensor, first: int, last: int, batch: tuple[Tensor, ...] | None) -> None:
        """Add the losses of neighbors, and their gradients. batch: None for the penalty."""
        cut = partial(_cut, first=first, last=last, whole=last - first == len(self.members))
        weights = {name: cut(value) for name, value in self.tensors.items()}
        own = {name: cut(value) for name, value in self.own.items()}
        loss_K = torch.vmap(self.call.loss)(weights, own, batch) if batch else torch.vmap(self.call.loss)(weights, own)
        loss_K.sum().backward()  # type: ignore[no-untyped-call]
        total_K[first:last] += loss_K.detach()


@dataclass(frozen=True, slots=True)
class Pass:
    """The mini-batches of some neighbors in a stack."""

    first: int
    last: int
    """One behind the last."""
    rows: Sequence[int]
    """Rows of each one that are no padding."""
    lengths: Sequence[int] | None
    """Positions of each one's longest row; None: rows have no length."""
    batch: tuple[Tensor, ...]
    """Fields of ``Batch``, in order, [K, B, ...]; denominators [K]."""


class _Call(nn.Module):
    """One client's loss as a function of its tensors."""

    def __init__(self, trainer: ClientTrainer[Any, Any]) -> None:
        super().__init__()
        self.trainer_model = trainer.model
        self.trainer = trainer

    def forward(self, batch: tuple[Any, ...] | None) -> Tensor:
        loss = self.trainer.loss(Batch(*batch)) if batch is not None else self.trainer.penalty()
        assert loss is not None  # ``penalty`` is asked for where there is one
        return loss

    def loss(self, weights: Tensors, own: Own, batch: tuple[Tensor, ...] | None = None) -> Tensor:
        """Return the loss with these weights and attributes of the trainer; batch: None for the penalty."""
        vars(self.trainer).update(own)
        out: Tensor = functional_call(self, weights, (batch,), tie_weights=False)
        return out


class StackedOptimizer:
    """The optimizers of the stack's clients: each weight moves by the moments and steps of its own client."""

    def __init__(self, each: Sequence[torch.optim.Optimizer], leaves: Mapping[int, Tensor], owner: Stack) -> None:
        """leaves: stacked parameters by the ``id`` of the first client's."""
        (group,) = each[0].param_groups
        if any(_numbers(optimizer) != _numbers(each[0]) for optimizer in each):
            raise InputError("federation.stack: the clients' optimizers have other rates: set it to 1")
        self.owner = owner
        self.lr, self.weight_decay = group["lr"], group["weight_decay"]
        self.betas, self.eps, self.momentum = group.get("betas"), group.get("eps", 0.0), group.get("momentum", 0.0)
        self.parameters = [leaves[id(p)] for p in group["params"]]
        self.names = ("exp_avg", "exp_avg_sq") if self.betas else ("momentum_buffer",) if self.momentum else ()
        self.moments = {name: [torch.zeros_like(p) for p in self.parameters] for name in self.names}
        self.steps_K = torch.zeros(len(each), dtype=torch.float64)
        for k, optimizer in enumerate(each):
            for i, p in enumerate(optimizer.param_groups[0]["params"]):
                state = optimizer.state.get(p, {})
                for name in self.names:
                    if state.get(name) is not None:
                        self.moments[name][i][k] = state[name]
                if "step" in state:
                    self.steps_K[k] = float(state["step"])

    @torch.no_grad()
    def step(self) -> None:
        """Take a step of the clients that are active."""
        count = self.owner.active
        values = [p[:count] for p in self.parameters]
        gradients = [p.grad[:count] for p in self.parameters if p.grad is not None]
        if self.weight_decay:
            gradients = list(torch._foreach_add(gradients, values, alpha=self.weight_decay))
        self.steps_K[:count] += 1
        moments = [[m[:count] for m in self.moments[name]] for name in self.names]
        if self.betas is None:  # plain SGD, or with momentum
            if self.momentum:
                torch._foreach_mul_(moments[0], self.momentum)
                torch._foreach_add_(moments[0], gradients)
                gradients = moments[0]
            torch._foreach_sub_(values, gradients, alpha=self.lr)
            return
        (beta_1, beta_2), (first, second) = self.betas, moments
        torch._foreach_lerp_(first, gradients, 1 - beta_1)
        torch._foreach_mul_(second, beta_2)
        torch._foreach_addcmul_(second, gradients, gradients, 1 - beta_2)
        steps_K = self.steps_K[:count]
        rate_K = (self.lr / (1 - beta_1**steps_K)).float().to(self.owner.device)
        root_K = (1 - beta_2**steps_K).sqrt().float().to(self.owner.device)
        divisors = list(torch._foreach_sqrt(second))
        torch._foreach_div_(divisors, [_beside(root_K, v) for v in second])
        torch._foreach_add_(divisors, self.eps)
        ways = list(torch._foreach_mul(first, [_beside(rate_K, v) for v in first]))
        torch._foreach_addcdiv_(values, ways, divisors, -1.0)

    def hand_back(self, k: int, optimizer: torch.optim.Optimizer) -> None:
        """Give a client's optimizer its state."""
        if not self.names or not self.steps_K[k]:
            return
        for i, p in enumerate(optimizer.param_groups[0]["params"]):
            state = {name: self.moments[name][i][k].clone() for name in self.names}
            if self.betas:
                step = torch.tensor(float(self.steps_K[k]), device=self.owner.device)
                state = {"step": step, **state}
            optimizer.state[p] = state


def _numbers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the options of an optimizer of one group."""
    return {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}


class _Others:
    """What one client has and a stack has not."""

    def __getattr__(self, name: str) -> Any:
        raise InputError(
            f"federation.stack: the method's loss reads {name!r} of a client's data, card, memory or message: let its"
            " trainer take what it needs when it is made, or set federation.stack to 1"
        )

    __getitem__ = __contains__ = __getattr__

    def __iter__(self) -> Iterator[Any]:
        return iter(self["its items"])

    def __len__(self) -> int:
        return len(self["its length"])


_OTHERS: Any = _Others()


def _kind(trainer: ClientTrainer[Any, Any]) -> Hashable:
    """Return a key that is equal for trainers whose attributes can be stacked."""
    shapes = {name: _shape(value) for name, value in vars(trainer).items() if name not in NOT_OWN}
    return type(trainer), *shapes.items()


def _shape(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return value.dtype, value.shape[1:], value.dim()
    if isinstance(value, dict):
        return tuple((key, _shape(part)) for key, part in value.items())
    return type(value).__qualname__


def _joined(values: Sequence[Any], name: str) -> Any:
    """Return the values of the clients as a tensor [K, ...] or a dict of such; None where they are one and the same.

    Tensors of a stack of one have the axis, too: its gradients do.
    """
    first = values[0]
    if len(values) > 1 and all(value is first for value in values):
        return None
    if isinstance(first, nn.Parameter):
        return nn.Parameter(torch.stack([value.detach() for value in values]), first.requires_grad)
    if isinstance(first, Tensor):
        most = max((len(value) for value in values), default=0) if first.dim() else 0
        # rows are looked up by ``index_B`` alone; a loss made of all of them is to be no number, not a wrong one
        rest = math.nan if first.is_floating_point() else 0
        return torch.stack([_padded(value, most, rest=rest) if first.dim() else value for value in values])
    if isinstance(first, dict):
        joined = {key: _joined([value[key] for value in values], f"{name}.{key}") for key in first}
        if all(value is None for value in joined.values()):
            return None
        if shared := {key: part for key, part in first.items() if joined[key] is None}:
            if not all(isinstance(part, Tensor) for part in shared.values()):
                raise InputError(f"federation.stack: {name} holds more than tensors: set federation.stack to 1")
            joined |= {key: torch.stack([part] * len(values)) for key, part in shared.items()}
        return joined
    if all(value == first for value in values):
        return None
    if isinstance(first, (int, float)):
        return torch.tensor([float(value) for value in values])
    raise InputError(
        f"federation.stack: the clients' {name} differ and are no numbers or tensors: set federation.stack to 1"
    )


def _with_leaves(value: Any, before: Any) -> Any:
    """Return joined values, but the parameters that were there before, which the optimizers move."""
    if isinstance(before, dict):
        return {key: _with_leaves(part, before.get(key)) for key, part in value.items()}
    return before if isinstance(before, nn.Parameter) else value


def _padded(value: Tensor, most: int, dim: int = 0, rest: float = 0) -> Tensor:
    """Return a tensor with ``rest`` behind, up to the length ``most`` of an axis."""
    shape = list(value.shape)
    shape[dim] = most - shape[dim]
    return torch.cat([value, value.new_full(shape, rest)], dim) if shape[dim] else value


def _cut(value: Any, first: int, last: int, whole: bool) -> Any:
    if isinstance(value, dict):
        return {key: _cut(part, first, last, whole) for key, part in value.items()}
    return value if whole else value[first:last]


def _beside(value_K: Tensor, like: Tensor) -> Tensor:
    """Return values of clients in a shape that multiplies ``like`` [K, ...]."""
    return value_K.view(-1, *[1] * (like.dim() - 1))


def _parameters(attributes: Mapping[str, Any]) -> Iterator[nn.Parameter]:
    """Yield the parameters among a trainer's attributes, in order."""
    for name, value in attributes.items():
        if name not in NOT_OWN:
            parts = value.values() if isinstance(value, dict) else (value,)
            yield from (part for part in parts if isinstance(part, nn.Parameter))
