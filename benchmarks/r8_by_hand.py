"""R8-8's training by hand, with torch alone: rounds without an engine or a library around them.

    python benchmarks/r8_by_hand.py CLIENTS.pt WAY ROUNDS     # bench_rounds.py calls this

``plain``: what one writes first: ``nn.TransformerEncoderLayer``, mini-batches padded to their longest row. ``fast``:
the same mathematics at the limit of what we could write: rows without a label are left out, mini-batches go in pieces
of like length, dropout masks come from a table of random bytes. ``bfloat16``: ``fast`` with such products. Two worker
processes of one thread take the clients of a round from a queue, with weights in shared memory; Adam starts anew.

Shape suffixes: B rows, L positions, D width, C classes.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing import get_context

WIDTH, HEADS, FEEDFORWARD, P = 256, 4, 64, 0.5
BATCH, LR, WORKERS, POSITIONS = 128, 1e-3, 2, 1024
BITS = torch.tensor([[2.0 * ((byte >> bit) & 1) for bit in range(8)] for byte in range(256)])


def sinusoids(length: int) -> Tensor:
    angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(10000.0) / WIDTH))
    return torch.stack([angle.sin(), angle.cos()], 2).reshape(length, WIDTH)


class Plain(nn.Module):
    """The plain network. dropout: 0 to compare two networks."""

    def __init__(self, vocabulary: int, length: int, classes: int, dropout: float = P) -> None:
        super().__init__()
        self.entry = nn.Embedding(vocabulary, WIDTH)
        self.drop = nn.Dropout(dropout)
        self.layer = nn.TransformerEncoderLayer(WIDTH, HEADS, FEEDFORWARD, dropout, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)
        self.positions = sinusoids(length)

    def forward(self, x_BL: Tensor) -> Tensor:
        real_BL = x_BL != 0
        z_BLD = self.drop(self.entry(x_BL) + self.positions[: x_BL.shape[1]])
        z_BLD = self.norm(self.layer(z_BLD, src_key_padding_mask=~real_BL))
        z_BD = (z_BLD * real_BL[..., None]).sum(1) / real_BL.sum(1, keepdim=True)
        return self.head(z_BD)


class Fast(Plain):
    """The network with the same weights and mathematics; attention written out, for its dropout."""

    def mask(self, z: Tensor) -> Tensor:
        if not self.drop.p:
            return z
        count = z.numel()
        byte = torch.empty((count + 63) // 64, dtype=torch.int64).random_(-(2**63), None).view(torch.uint8)
        table = BITS.to(z.dtype)
        return z * table.index_select(0, byte[: (count + 7) // 8].int()).view(-1)[:count].view(z.shape)

    def forward(self, x_BL: Tensor) -> Tensor:
        layer, (b, length) = self.layer, x_BL.shape
        z_BLD = self.mask(self.entry(x_BL) + self.positions[:length])
        real_BL = x_BL != 0
        attention = layer.self_attn
        qkv = F.linear(z_BLD, attention.in_proj_weight, attention.in_proj_bias).view(b, length, 3, HEADS, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        weight = (q * (WIDTH // HEADS) ** -0.5) @ k.transpose(-2, -1)
        ragged = not bool(real_BL.all())
        if ragged:
            weight = weight.masked_fill(~real_BL[:, None, None], -math.inf)
        mixed = (self.mask(weight.softmax(-1)) @ v).transpose(1, 2).reshape(b, length, WIDTH)
        z_BLD = layer.norm1(z_BLD + self.mask(attention.out_proj(mixed)))
        z_BLD = layer.norm2(z_BLD + self.mask(layer.linear2(self.mask(layer.linear1(z_BLD).relu()))))
        z_BLD = self.norm(z_BLD)
        if not ragged:
            return self.head(z_BLD.mean(1))
        return self.head((z_BLD * real_BL[..., None]).sum(1) / real_BL.sum(1, keepdim=True))


def pieces(index_B: Tensor, length_N: Tensor) -> Iterator[Tensor]:
    """Yield rows by length, so many at a time that the padded positions stay few."""
    order = index_B[torch.argsort(length_N[index_B], stable=True)]
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * int(length_N[order[end]]) > POSITIONS:
            yield order[start:end]
            start = end


def train(model: Plain, client: dict[str, Tensor], order_N: Tensor, way: str) -> float:
    """Train an epoch of a client's rows: x [N, L], label [N] (-1: none), length [N]. Return the last loss."""
    model.train()
    x_NL, label_N, length_N = client["x"], client["label"], client["length"]
    optimizer = torch.optim.Adam(model.parameters(), LR)
    low = torch.autocast("cpu", torch.bfloat16) if way == "bfloat16" else contextlib.nullcontext()
    total = torch.zeros(())
    for index_B in order_N.split(BATCH):
        optimizer.zero_grad(set_to_none=False)  # so that Adam goes on where a mini-batch has no label at all
        parts = [index_B] if way == "plain" else pieces(index_B[label_N[index_B] >= 0], length_N)
        total = torch.zeros(())
        for part in parts:
            x_BL = x_NL[part, : int(length_N[part].max())]
            with low:
                logits_BC = model(x_BL)
            loss = F.cross_entropy(logits_BC.float(), label_N[part], ignore_index=-1, reduction="sum") / len(index_B)
            loss.backward()
            total += loss.detach()
        optimizer.step()
    return float(total)


def work(about: dict, way: str, sent: Tensor, updates: Tensor, tasks, done) -> None:
    """Train as a worker: for every (client, place), from ``sent`` into ``updates[place]``."""
    torch.set_num_threads(1)
    model = (Plain if way == "plain" else Fast)(about["vocabulary"], about["length"], about["classes"])
    for client, place in iter(tasks.get, None):
        nn.utils.vector_to_parameters(sent.clone(), model.parameters())
        rows = about["clients"][client]
        train(model, rows, torch.randperm(len(rows["x"])), way)
        updates[place] = nn.utils.parameters_to_vector(model.parameters()).detach()
        done.put(place)


def rounds(about: dict, way: str, count: int) -> list[float]:
    """Return the seconds of every round of ``about["chosen"]``."""
    context, taken = get_context("fork"), []
    model = Plain(about["vocabulary"], about["length"], about["classes"])
    sent = nn.utils.parameters_to_vector(model.parameters()).detach().clone().share_memory_()
    updates = torch.zeros(len(about["chosen"][0]), len(sent)).share_memory_()
    tasks, done = context.Queue(), context.Queue()
    workers = [context.Process(target=work, args=(about, way, sent, updates, tasks, done)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for chosen in about["chosen"][:count]:
        began = time.perf_counter()
        for place, client in enumerate(chosen):
            tasks.put((client, place))
        for _ in chosen:
            done.get()
        sent.copy_(updates.mean(0))
        taken.append(time.perf_counter() - began)
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    pss = sum(p.memory_full_info().pss for p in family)
    print(json.dumps({"case": way, "seconds": taken, "pss": pss}), flush=True)
    for _ in workers:
        tasks.put(None)
    for worker in workers:
        worker.join()
    return taken


if __name__ == "__main__":
    rounds(torch.load(sys.argv[1], weights_only=True), sys.argv[2], int(sys.argv[3]))
