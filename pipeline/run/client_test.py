"""The end of a run whose clients have test rows of their own: the selected model, or models, on each client's rows.

All of it happens in this process, on the CPU with one thread, so that it gives the same bits wherever clients trained.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from anchorfl.models.classifier import Classifier
from anchorfl.pipeline.algorithm.contract import Tensors
from anchorfl.pipeline.execution.executor import NEXT, server_of
from anchorfl.pipeline.results.client_scores import ClientScore
from anchorfl.pipeline.run.round_loop import weights_in
from anchorfl.pipeline.training.client import ClientRunner
from anchorfl.pipeline.training.client_test import ClientTest
from anchorfl.pipeline.training.run_spec import RunSpec, one_thread


def score_clients(run_spec: RunSpec, state: Tensors, memory: Callable[[int], Tensors]) -> list[ClientScore]:
    """Return the scores of every client on its own test rows.

    state: the server's, as ``Executor.snapshot`` gives it; memory: a client's, asked for where clients' own models are
    scored (``Method.evaluate_on``).
    """
    data, metrics = run_spec.data(), run_spec.experiment.evaluation.metrics
    names = data.manifest.client_names
    threads = torch.get_num_threads()
    one_thread()
    try:
        test, model_of = ClientTest(data, run_spec.objective(), metrics), _models(run_spec, state, memory)
        return [
            ClientScore(
                client, names[client] if names else "", rows, test.scores(model_of(client), client) if rows else {}
            )
            for client, rows in enumerate(data.manifest.client_test)
        ]
    finally:
        torch.set_num_threads(threads)


def _models(run_spec: RunSpec, state: Tensors, memory: Callable[[int], Tensors]) -> Callable[[int], Classifier]:
    """Return the model that is scored for each client."""
    method = run_spec.experiment.method
    if method.evaluate_on == "server":
        model = run_spec.model()
        model.load_state_dict(weights_in(state))
        return lambda client: model
    runner = ClientRunner(run_spec)
    server = server_of(run_spec, runner)
    server.restore(state)
    sent = server.broadcast(NEXT)
    return lambda client: runner.personal_model(sent, memory(client))
