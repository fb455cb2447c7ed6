"""A run folder as Python and notebooks look at it: scores, curves, classes, confusion, partition, model."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from anchorfl.pipeline.config.experiment import Experiment, data_and_method
from anchorfl.pipeline.results.client_scores import read_client_scores
from anchorfl.pipeline.results.in_memory import Model, open_model
from anchorfl.pipeline.storage.places import check_own_places, with_places
from anchorfl.pipeline.storage.run_folder import CONFIG, read_config, read_experiment, read_result
from anchorfl.pipeline.storage.run_record import RoundRecord, check_same_data, with_final_scores
from anchorfl.tasks.errors import InputError
from anchorfl.tasks.ingest.ingest import prepare
from anchorfl.tasks.ingest.prepared import Prepared
from anchorfl.tasks.metrics.classification import count_confusion
from anchorfl.tasks.metrics.scores import FAMILIES
from anchorfl.tasks.plugins import names_code
from anchorfl.tasks.registry import task_of

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]  # carries no types


class Run:
    """A run: its folder, and what is in it. A run that was interrupted has its rounds so far, and no result."""

    def __init__(
        self,
        folder: str | Path,
        data: Prepared | None = None,
        experiment: Experiment | None = None,
        *,
        places: Mapping[str, str] | None = None,
    ) -> None:
        """data, experiment: those of the run, of a caller who has them.

        places: option -> place, instead of what the folder names: ``{"task.root": ...}`` where the raw files lie
        elsewhere; ``{"method.name": "mine:Mine"}`` for a folder with a plug-in that this user's commands did not write.
        Errors: InputError where there is no run, or a place makes another experiment.
        """
        self.folder, self._data, self._given = Path(folder), data, experiment is not None
        self._typed = frozenset(places or ())
        self._found = found = experiment or read_experiment(self.folder, places)
        self.experiment: Experiment = with_places(found, places) if places else found

    @property
    def finished(self) -> bool:
        """True where it has a result."""
        return bool(read_result(self.folder))

    @property
    def checksum(self) -> str:
        """SHA-256 of the selected model's weights. Errors: InputError where the run is not finished."""
        return str(self._result("checksum"))

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Split -> metric -> value of the selected round. Errors: InputError where the run is not finished."""
        scores: dict[str, dict[str, float]] = self._result("scores")
        return scores

    @cached_property
    def model(self) -> Model:
        """The trained model, read once. Errors: InputError where there is none."""
        code = (self.experiment.model.network, self.experiment.task.name)  # whose user trusts it, or it was not read
        network, task = (name if names_code(name) else "" for name in code)
        return open_model(self.folder, network, task)

    def predict(self, samples: Any) -> pd.DataFrame:
        """Return probabilities by class name for samples in memory, as ``Model.predict``."""
        return self.model.predict(samples)

    def to_pandas(self) -> pd.DataFrame:
        """Return all metrics: a row per round, from 0 (initial weights), a column per metric."""
        import pandas as pd

        records = self._records()
        return pd.DataFrame([r.metrics for r in records], index=pd.Index([r.round for r in records], name="round"))

    def curve(self, metric: str = "") -> pd.Series:
        """Return one metric over the rounds that have it.

        metric: such as ``validation/accuracy`` or ``train/loss``; empty: what rounds are compared by, on the test
        split where every round was tested, else on validation. Errors: InputError where no round has it.
        """
        table = self.to_pandas()
        primary = FAMILIES[self.experiment.evaluation.metrics].primary.name
        if not metric:
            tested = f"test/{primary}" in table and table[f"test/{primary}"].notna().sum() > 1
            metric = f"{'test' if tested else 'validation'}/{primary}"
        if metric not in table:
            raise InputError(f"{self.folder}: no round has {metric!r}; there are: {', '.join(sorted(table))}")
        return table[metric].dropna()

    def per_class(self) -> pd.DataFrame:
        """Return the scores of every class, of the selected round or the last so far, with the number of clients that
        identify it, fewest first.

        Columns: ``clients``, then ``test/f1``, ``validation/f1`` and others that the run has. Errors: InputError
        where it has none, as rankings of more than 1,000 classes have not.
        """
        import pandas as pd

        columns = last_class_scores(self._records(), read_result(self.folder).get("round"))
        if not columns:
            raise InputError(f"{self.folder}: its rounds have no scores by class")
        table = pd.DataFrame(dict(sorted(columns.items())))
        table.insert(0, "clients", pd.Series(identifying_clients(self.data)))
        return table.rename_axis("class").sort_values("clients", kind="stable")

    def per_client(self) -> pd.DataFrame:
        """Return the scores of the selected model on every client's own test rows, a row per client.

        Columns: ``name`` where clients have names, ``rows``, then the scores, NaN where a client has no test row.
        Errors: InputError where clients have none at all (``task.client_test``), or the run is not finished.
        """
        import pandas as pd

        scores = read_client_scores(self.folder)
        if not scores:
            raise InputError(f"{self.folder}: no scores by client: set --task.client_test to a share, such as 0.2")
        table = pd.DataFrame([{"rows": score.rows, **score.values} for score in scores])
        if any(score.name for score in scores):
            table.insert(0, "name", [score.name for score in scores])
        return table.set_axis(pd.Index([score.client for score in scores], name="client"))

    def partition(self) -> pd.DataFrame:
        """Return who holds what: a row per client and class that it holds or identifies.

        Columns: ``client``, ``class``, ``rows`` (of classes that it does not identify, too; without labels that
        ``task.hidden_labels`` hid) and ``identified``.
        """
        import pandas as pd

        data, held = self.data, self.data.class_histogram()
        triples = zip(held.client_H.tolist(), held.class_H.tolist(), held.rows_H.tolist(), strict=True)
        rows = {(client, c): number for client, c, number in triples}
        identified = {(client, c) for client, classes in enumerate(data.cards().identified) for c in classes}
        names = data.manifest.class_names
        lines = [(m, names[c], rows.get((m, c), 0), (m, c) in identified) for m, c in sorted(rows.keys() | identified)]
        return pd.DataFrame(lines, columns=["client", "class", "rows", "identified"])

    def confusion(self) -> pd.DataFrame:
        """Return the number of test rows by true class (index) and decision (columns) of the selected model.

        Errors: InputError for a multi-label task, or where there is no model.
        """
        import pandas as pd

        names = list(self.model.class_names)
        index, columns = pd.Index(names, name="true"), pd.Index(names, name="predicted")
        return pd.DataFrame(self.confusion_counts(), index=index, columns=columns)

    def confusion_counts(self) -> npt.NDArray[np.int64]:
        """Return ``confusion`` as an array [C, C], true class by decision."""
        data, model = self.data, self.model
        if data.manifest.kind != "single":
            raise InputError(f"{self.folder}: classes of a multi-label task do not exclude each other")
        rows = data.split("test", model.objective)
        known_N = (rows.y_NC * rows.known_NC).any(-1)
        predicted_N = model.logits(rows).argmax(-1)[known_N].numpy()
        return count_confusion(rows.y_NC[known_N].argmax(-1).numpy(), predicted_N, len(model.class_names))

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}): {', '.join(self._summary().values())}"

    def _repr_html_(self) -> str:
        cells = {"folder": str(self.folder), **self._summary()}.items()
        rows = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in cells)
        return f"<table style='text-align: left'>{rows}</table>"

    def _summary(self) -> dict[str, str]:
        """Return the run in a few words, by what they are."""
        experiment, result, records = self.experiment, read_result(self.folder), self._records()
        out = {"what": f"{data_and_method(experiment)}, seed {experiment.seed}"}
        done = records[-1].round if records else 0
        out["rounds"] = f"{done} of {experiment.federation.rounds} rounds"
        if "stopped" in result:
            out["rounds"] += f", stopped {result['stopped']}"
        elif not result:
            out["rounds"] += ", not finished"
        for split, values in result.get("scores", {}).items():
            measures = [m for m in FAMILIES[experiment.evaluation.metrics].progress if m.name in values]
            out[split] = f"{split} " + ", ".join(f"{m.short} {100 * values[m.name]:.2f}" for m in measures)
        return out

    def _result(self, name: str) -> Any:
        result = read_result(self.folder)
        if name not in result:
            raise InputError(f"{self.folder}: not finished; go on with anchorfl.resume({str(self.folder)!r})")
        return result[name]

    def _records(self) -> list[RoundRecord]:
        return with_final_scores(self.folder)

    @cached_property
    def data(self) -> Prepared:
        """The prepared data, from the cache or prepared again. Errors: InputError where the raw files are missing, or
        others than the run's, or where a folder of others says where they are (``places``).
        """
        experiment = self.experiment
        if self._data is None and not self._given:
            seal = str(read_config(self.folder).get("seal", ""))
            check_own_places(self._found, seal, self.folder / CONFIG, self._typed, {}, "task.")
        data = self._data or prepare(task_of(experiment.task), experiment.task, experiment.seed, engine="local")
        check_same_data(self.folder, data.manifest.digests, "use the version and the raw files that it began with")
        return data


def last_class_scores(records: Sequence[RoundRecord], selected: int | None) -> dict[str, dict[str, float]]:
    """Return the scores of every class: metric -> class name -> score. selected: the round that a run ended with; None,
    or one without such scores: the last that rounds have.
    """
    scores: dict[str, dict[str, float]] = {}
    records = [r for r in records if r.round == selected and r.per_class] or records
    for record in records:
        scores |= record.per_class
    return scores


def identifying_clients(data: Prepared) -> dict[str, int]:
    """Return the number of clients that identify each class, by its name."""
    names = data.manifest.class_names
    count_C = np.zeros(len(names), dtype=np.int64)
    for identified in data.cards().identified:
        count_C[list(identified)] += 1
    return dict(zip(names, count_C.tolist(), strict=True))
