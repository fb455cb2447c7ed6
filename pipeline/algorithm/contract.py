"""The interface of a federated method: the one file that a method's author has to read.

A method is a frozen dataclass of hyper-parameters with a server half (pure functions over a typed state) and a
client half (an object that lives for one client in one round). Five verbs: begin, broadcast, step, update, aggregate.
FedAvg is the five defaults; FedProx changes the loss; SCAFFOLD adds a tensor to each message; FedAlign labels some
data and steps twice; FedBM trains a generator inside merge; FedALC regularizes class embeddings there.

Shape suffixes: B rows, C classes, D width, I clients, N rows of a client, P pairs of a row and a class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from anchorfl.models.build import Head
from anchorfl.models.classifier import Classifier
from anchorfl.models.label_encoder import encoded_once
from anchorfl.models.prompted_texts import PromptedTexts
from anchorfl.pipeline.algorithm.aggregation import ROBUST, Average, Weighting, mean_of
from anchorfl.pipeline.algorithm.exact_sums import Contribution, Means, Term, means_of
from anchorfl.pipeline.algorithm.optimizers import make, restore, state_of
from anchorfl.pipeline.algorithm.options import OptimizerOptions
from anchorfl.pipeline.algorithm.parameters import load_sent, parts_of, weights_of
from anchorfl.tasks.arrays.sparse_rows import RowBlock
from anchorfl.tasks.contract import Batch, Card, ClientData, InputSpec, LabelKind, Objective
from anchorfl.tasks.errors import InputError

Tensors = dict[str, Tensor]
Parts = Iterable[RowBlock]  # a client's rows, some at a time, with sparse labels


@dataclass(frozen=True)
class ServerState:
    """The server's state, which a method may extend. Every field is a tensor, a dict or a dataclass of tensors."""

    weights: Tensors
    """Weights of the global model, by name."""


@dataclass(frozen=True)
class Update:
    """A client's message after training. Every field is a tensor, a dict or a dataclass of tensors."""

    weights: Tensors
    """Weights of the client's model, by name."""


def given(value: object, kind: type, hook: str, owner: object) -> None:
    """Raise InputError where a method's hook gave something else than it has to: a ``return`` was forgotten."""
    if not isinstance(value, kind):
        raise InputError(
            f"{hook}() of {type(owner).__name__} gives a {type(value).__name__}, and has to give a {kind.__name__}"
            " (pipeline/algorithm/contract.py): mend the method"
        )


@dataclass(frozen=True, kw_only=True)
class HeadSpec:
    """The head that a method asks for on the task's encoder (``anchorfl.models.build``)."""

    kind: Head = "linear"
    """``linear``, ``label`` (class embeddings from names), ``biased`` (these at length 1, with a bias each), ``guided``
    (classes are tokens of their names), ``cosine``, ``concept``, ``prototype`` or ``frame``."""
    semantic: bool = True
    """Class embeddings start from the class names' vectors (``label`` and ``biased``)."""
    unit: bool = True
    """Class representations have length 1 in the logits of single-label tasks (``label`` only)."""
    parts: int = 1
    """Encoders side by side, each with its part of every row of the head (``cosine``); layers (``guided``)."""
    first_scale: float = 1.0
    """First value of a trained scale (``prototype`` and ``frame`` only)."""
    concepts: bool = False
    """The server needs what a text encoder makes of the class names (``ServerContext.concepts_CMD``)."""
    prompt_length: int | None = None
    """The server needs a text encoder that reads the class names behind prompts of so many vectors, which the method
    trains (``ServerContext.texts``); None: it does not."""

    @property
    def named(self) -> bool:
        """True where the head is made with a vector for each class (``[class_embeddings]``)."""
        return self.kind in ("label", "biased", "guided")


@dataclass(frozen=True, kw_only=True)
class Supports:
    """Tasks and options that a method works with; a run with others stops before round 1 (pipeline/run/prepare.py)."""

    kinds: tuple[LabelKind, ...] = ("single", "multi")
    """Kinds of task."""
    robust: tuple[str, ...] = ROBUST
    """Robust aggregations, and ``clip_norm``, that its aggregation allows."""
    one_class: bool = False
    """It has one client per class, which knows that class alone (``task.partition = "one_class"``)."""
    stack: bool = True
    """Its trainers are ``replayable``, so that one program can train several clients (``federation.stack``)."""


S = TypeVar("S", bound=ServerState)
U = TypeVar("U", bound=Update)


@dataclass(frozen=True)
class ClientResult(Generic[U]):
    """An update with its sender's card; ``aggregate`` gets them in the order of client ids."""

    card: Card
    update: U


@dataclass(frozen=True)
class ServerContext:
    """The arguments of a method's server hooks beside the state."""

    model: Classifier
    """A network: in ``begin`` with the run's first weights, later with whatever was left in it."""
    cards: Sequence[Card]
    """Cards of all clients, by id."""
    objective: Objective
    """Single- or multi-label loss, scores and decisions."""
    validate: Callable[[Tensors], Tensor]
    """weights -> F1 per class [C] on the validation split."""
    rng: torch.Generator
    """Seeded by the run's seed and the round."""
    round: int
    """Counted from 1; 0 in ``begin``."""
    rounds: int
    """Rounds of the whole run."""
    initial_messages: Sequence[Any] = ()
    """Messages of all clients before round 1 (``Method.initial_message``), by id; in ``begin`` alone."""
    concepts_CMD: Tensor | None = None
    """Vectors of length 1 of M prompts with each class's concept (FedBM), where ``HeadSpec.concepts``."""
    texts: PromptedTexts | None = None
    """A frozen text encoder of the class names, on the server's device (FedTSP), where ``HeadSpec.prompt_length``."""
    spec: InputSpec | None = None
    """Kind and shape of an input."""
    workspace: Classifier | None = None
    """A network on the server's device, for what is computed there; it holds whatever was left in it."""
    average: Average = mean_of
    """The average of what clients send whole (``federation.aggregation``): (clients' tensors, weights) -> tensors."""
    noise_rng: np.random.Generator | None = None
    """For noise that has to stay a secret, seeded as ``rng``, by as many bits as it takes."""


@dataclass(frozen=True)
class ClientContext(Generic[S]):
    """The arguments of a method's client half."""

    model: Classifier
    """The broadcast weights, in storage of its own. Whatever was not sent is NaN, so that using it shows at once."""
    state: S
    """The broadcast, as received."""
    card: Card
    """The client's own."""
    data: ClientData
    """The client's rows."""
    memory: Tensors
    """The client's last ``ClientTrainer.memory``, at first ``Method.first_memory``; read only."""
    objective: Objective
    """Single- or multi-label loss, scores and decisions."""
    optimizer: OptimizerOptions
    """Options of this round: rates are decayed."""
    infer: Callable[[Classifier, ClientData], Tensor]
    """(model, data) -> z_ND, the encoder in evaluation mode."""
    rng: torch.Generator
    """Seeded by the run's seed, the client and the round."""
    client_message: Tensors = field(default_factory=dict)
    """Message of the server to this client alone (``Method.client_message``)."""
    round: int = 1
    """Counted from 1."""


class ClientTrainer(ABC, Generic[S, U]):
    """The work of one client in one round: built, stepped, asked for its update and its memory, dropped."""

    refresh: Literal["round", "epoch"] = "round"
    """Time at which ``data`` is asked for the rows to train on."""
    replayable: bool = False
    """True where a step is the same program of tensors at every call in a phase, so that a GPU can record and repeat
    it, and several clients' steps can be one (``federation.stack``): it draws nothing from a generator of the CPU,
    counts nothing in Python, waits for no number, and rows of weight 0 add nothing to its loss, which looks up what
    the trainer keeps of its rows by ``index_B`` alone (a stack pads it, with NaN). It is not inherited."""
    phase: Hashable = ""
    """What steps do now, where they do not do the same in all epochs."""
    steps: int = 0
    """Steps taken in this round, which the loop counts."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.replayable = cls.__dict__.get("replayable", False)

    def __init__(self, ctx: ClientContext[S]) -> None:
        self.ctx = ctx
        self.model = ctx.model
        self.optimizers = self.make_optimizers()
        for name, optimizer in self.optimizers.items():
            restore(optimizer, name, ctx.memory)
        self.parameters = parts_of(self.model)[1]
        for p in self.parameters:
            if p.grad is None:
                # Zeros, not None: a mini-batch without a labeled row has a gradient of zero, and Adam still moves.
                p.grad = torch.zeros_like(p)
        self.zero_gradients()

    def make_optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return optimizers by name; the name is the prefix of their state in the client's memory."""
        return {"all": make(self.ctx.optimizer, self.model.parameters())}

    def epochs(self, count: int) -> Iterable[object]:
        """Return an item for every local epoch; count: ``federation.epochs``. What stands before a ``yield`` is done
        right before that epoch (FedRep's two phases).
        """
        return range(count)

    def data(self) -> ClientData:
        """Return the rows to train on. FedAlign pseudo-labels here."""
        return self.ctx.data

    def active(self, data: ClientData) -> Tensor:
        """Return bool [N]: rows that can have a loss or a gradient; the others may be left out of the computation.

        Asked once for what ``data`` returns, right before the first epoch on it.
        """
        return (data.weight_NC != 0).any(-1)

    def loss(self, batch: Batch) -> Tensor:
        """Return the sum of the rows' losses over ``batch.denominator``: additive over a mini-batch's micro-batches."""
        return self.ctx.objective.loss(self.model(batch.x), batch)

    def penalty(self) -> Tensor | None:
        """Return a loss that does not depend on the rows, added once per step (FedProx); None: there is none."""
        return None

    def zero_gradients(self) -> None:
        """Set the gradients of all parameters to zero."""
        torch._foreach_zero_([p.grad for p in self.parameters if p.grad is not None])

    def gradients(self, micro_batches: Iterable[Batch]) -> Tensor:
        """Zero the gradients, add those of all micro-batches and of the penalty, and correct them; return the
        mini-batch's loss.
        """
        total = torch.zeros((), device=self.parameters[0].device)
        self.zero_gradients()
        with encoded_once(self.model.head):
            for micro_batch in micro_batches:
                loss = self.loss(micro_batch)
                loss.backward()  # type: ignore[no-untyped-call]
                total = total + loss.detach()
        extra = self.penalty()
        if extra is not None:
            extra.backward()  # type: ignore[no-untyped-call]
            total = total + extra.detach()
        self.correct()
        return total

    def correct(self) -> None:
        """Change the gradients before an optimizer takes them (SCAFFOLD).

        In a stack they have an axis of clients in front, and so have tensors that are a trainer's own: keep them apart.
        """

    def step(self, micro_batches: Sequence[Batch]) -> Tensor:
        """Train on one mini-batch, given as micro-batches whose losses add up; return its loss."""
        loss = self.gradients(micro_batches)
        for optimizer in self.optimizers.values():
            optimizer.step()
        return loss

    @abstractmethod
    def update(self) -> U:
        """Return what is sent to the server."""

    def memory(self) -> Tensors:
        """Return what this client will be given again in its next round; it never leaves the run."""
        if self.ctx.optimizer.state == "reset":
            return {}
        return {k: v for name, o in self.optimizers.items() for k, v in state_of(o, name).items()}


@dataclass(frozen=True)
class BatchedRound(Generic[S]):
    """A round of clients with one class each as one pass over their distinct rows, with the same update."""

    loss: Callable[[Tensor, Tensor], Tensor]
    """(z_PD, row_PD) -> [P]: loss of pairs of a row's representation and the head's row of one of its classes."""
    client_weights: Callable[[Tensor], Tensor]
    """(rows_I) -> [I]: weights of clients in the mean, by their numbers of rows."""
    class_embedding_lr: Callable[[int], float]
    """(round) -> rate of a client's step on its row of the head; 0: none."""
    unit: Callable[[Tensor], Tensor]
    """(rows_CD) -> [C, D]: the head's rows at length 1."""
    client_message_bytes: Callable[[S, Tensor], int]
    """(state, class_I) -> bytes of the messages to these classes' clients alone."""
    finish_round: Callable[[S, Tensors, Tensor, ServerContext], S]
    """(state, weights, answered_C, ctx) -> the state after the server's work, given averaged weights and stacked rows.
    """


class Method(ABC, Generic[S, U]):
    """A frozen dataclass of hyper-parameters and five verbs. Server hooks are pure: state in, state out."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in ("contribution", "merge"):
            if cls.aggregate is not Method.aggregate and getattr(getattr(cls, name), "__isabstractmethod__", False):
                setattr(cls, name, None)  # no longer abstract, and never called

    # ---- What it is, asks for and works with.

    name: ClassVar[str]
    """The method's key in ``anchorfl.pipeline.methods.METHODS``, presets and records."""
    revision: ClassVar[int] = 1
    """Raised when the same options come to give another result: a part of every digest, where it is not 1."""
    single_label_revision: ClassVar[int] = 0
    """That of the project's tasks with one label a row, where later ones changed nothing for these; 0: ``revision``."""
    supports: ClassVar[Supports] = Supports()
    """Kinds of task and robust aggregations that it works with."""
    unused: ClassVar[Mapping[str, str]] = {}
    """Options of other tables that the method does not read -> what it reads in their place."""
    averaged: ClassVar[tuple[str, ...]] = ("weights",)
    """Fields of the state that means take the place of: they tell how large a client's values may be."""
    constant: ClassVar[tuple[str, ...]] = ()
    """Weights that no client changes: no noise for privacy falls on them."""
    sends_initial_message: ClassVar[bool] = False
    """Clients send something before round 1, beside their cards (``initial_message``)."""
    evaluate_on: Literal["server", "clients"] = "server"
    """Models that are scored: the server's; or every client's (``personal_model``), for the mean of their scores, and
    then there is no model to save."""

    @property
    def head(self) -> HeadSpec:
        """The head on the task's encoder."""
        return HeadSpec()

    @property
    def sums(self) -> bool:
        """True where the server needs the means of contributions alone, and not every update."""
        return type(self).aggregate is Method.aggregate

    @property
    def sends_own(self) -> bool:
        """True where contributions have tensors that the server gets as they are (``Contribution.own``)."""
        return False

    @property
    def stackable(self) -> bool:
        """True where its trainers are ``replayable`` with these options."""
        return self.supports.stack

    @property
    def robust(self) -> tuple[str, ...]:
        """Robust aggregations, and ``clip_norm``, that its aggregation allows with these options."""
        return self.supports.robust

    @property
    def sends_weights_alone(self) -> bool:
        """True where the server learns of the clients the mean of their weights alone, beside their cards."""
        return False

    def keeps_verbs_of(self, base: type[Method[Any, Any]]) -> bool:
        """Return whether a class derived from ``base`` has left alone what noise on a mean takes for granted of it."""
        return all(getattr(type(self), verb) is getattr(base, verb) for verb in _FEDAVGS)

    @property
    def sends_client_messages(self) -> bool:
        """True where the server sends clients messages of their own: by default where it has a method for that."""
        return type(self).client_message is not Method.client_message

    # ---- The server's verbs.

    @abstractmethod
    def begin(self, ctx: ServerContext) -> S:
        """Return the state before round 1."""

    def broadcast(self, state: S, ctx: ServerContext) -> S:
        """Return what is sent to the selected clients: the state, private fields blanked."""
        return state

    @abstractmethod
    def contribution(self, result: ClientResult[U]) -> Contribution:
        """Return what the server takes in of an update: its terms in weighted means. A pure function, which workers
        call, too: what they send is then one sum for many clients. Not needed beside an own ``aggregate``.
        """

    @abstractmethod
    def merge(self, state: S, means: Means, ctx: ServerContext) -> S:
        """Return the state after a round, from the means of the clients' contributions. Not needed beside an own
        ``aggregate``.
        """

    def aggregate(self, state: S, results: Sequence[ClientResult[U]], ctx: ServerContext) -> S:
        """Return the state after a round. ``results`` is not empty and sorted by client.

        It merges the means of the contributions. A method that has to see all updates at once has its own in their
        place; its server then keeps them all until the round is over.
        """
        contributions = [(result.card.client, self.contribution(result)) for result in results]
        return self.merge(state, means_of(contributions, ctx.average), ctx)

    def client_weights(self, rows_I: Tensor) -> Tensor:
        """Return the clients' weights in means, by their rows of data: float64 [I], of any sum. Their rows where the
        option ``weighting`` is "samples", else 1.
        """
        samples = getattr(self, "weighting", "uniform") == "samples"
        return rows_I.double() if samples else torch.ones(len(rows_I), dtype=torch.float64)

    def client_weight(self, card: Card) -> float:
        """Return a client's weight in means."""
        return self.total_weight([card])

    def total_weight(self, cards: Sequence[Card]) -> float:
        """Return the sum of clients' weights in means."""
        return float(self.client_weights(torch.tensor([card.num_examples for card in cards])).sum())

    def largest_weights(self, rows_I: Tensor) -> dict[str, Tensor]:
        """Return the largest weights that a contribution's terms can have, by the clients' rows of data: name of the
        term -> float64 [I]; "": all that are not named.
        """
        return {"": self.client_weights(rows_I)}

    # ---- The client's half, whose verbs are step and update.

    @property
    def phases(self) -> str:
        """What in the options parts a client's round into phases of whole epochs, so that ``federation.steps`` cannot
        end it; "": nothing.
        """
        return ""

    @abstractmethod
    def trainer(self, ctx: ClientContext[S]) -> ClientTrainer[S, U]:
        """Return the client half for one round."""

    def first_memory(self, model: Classifier) -> Tensors:
        """Return a client's memory before its first round; it makes that itself from the model's first weights."""
        return {}

    # ---- Messages beside broadcast and update.

    def initial_message(self, card: Card, parts: Parts, key: bytes) -> object:
        """Return a client's message before round 1. parts: its rows, some at a time; key: a secret of the clients."""
        return {}

    def client_message(self, state: S, card: Card) -> Tensors:
        """Return what one client gets beside the broadcast: its own row of the head, for example."""
        return {}

    # ---- Optional: scores of clients' models, populations, notices.

    def personal_model(self, model: Classifier, sent: S, memory: Tensors) -> Classifier:
        """Return a client's own model, for its scores. model: a work-space; sent: what it would be sent now."""
        load_sent(model, sent.weights)
        return model

    def batched_round(self) -> BatchedRound[S] | None:
        """Return how a round of clients with one class each is computed at once; None where that is not the same."""
        return None

    def notice(self, rounds: int) -> str:
        """Return a line for the log of a run: what else must be known about it. Empty: nothing."""
        return (
            "" if self.evaluate_on == "server" else "scores are means over all clients of what their own models score"
        )

    def peak_state(self, state: S, rounds: int) -> tuple[S, int]:
        """Return a state and a round's number in which a run needs most memory, for ``anchorfl probe`` to measure."""
        return state, 1


_FEDAVGS = (
    "begin", "broadcast", "client_message", "contribution", "client_weights", "client_weight", "total_weight",
    "aggregate", "merge",
)  # fmt: skip
"""What noise on a mean of equal weights takes for granted of a method."""


class AveragingTrainer(ClientTrainer[ServerState, Update]):
    """A client half that sends its weights; all else is the default."""

    replayable = True

    def update(self) -> Update:
        return Update(weights_of(self.model))


@dataclass(frozen=True, kw_only=True)
class Averaging(Method[ServerState, Update]):
    """FedAvg's server: a method that differs on the client alone starts here."""

    weighting: Weighting = "samples"
    """Weight of a client in the mean: its number of samples (McMahan et al., 2017), or 1 (FedAlign's tables)."""

    @property
    def sends_weights_alone(self) -> bool:
        """True where sums, weights in them, the server's step and what it sends are FedAvg's."""
        return self.keeps_verbs_of(Averaging) and not self.sends_initial_message

    def begin(self, ctx: ServerContext) -> ServerState:
        return ServerState(weights_of(ctx.model))

    def trainer(self, ctx: ClientContext[ServerState]) -> ClientTrainer[ServerState, Update]:
        return AveragingTrainer(ctx)

    def contribution(self, result: ClientResult[Update]) -> Contribution:
        return Contribution({"weights": Term(result.update.weights, self.client_weight(result.card))})

    def merge(self, state: ServerState, means: Means, ctx: ServerContext) -> ServerState:
        return replace(state, weights=means["weights"])
