"""FedAwS (Yu et al., ICML 2020): positive labels only, and class rows that the server spreads out.

Facts and readings: docs/methods/fedaws.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from anchorfl.pipeline.algorithm.class_embeddings import Spreadout


@dataclass(frozen=True, kw_only=True)
class FedAwS(Spreadout):
    """Client: pulls its rows of data and its class row together. Server: one step that pushes every class row and its K
    nearest apart, all pairs alike (eq. 7).
    """

    name = "fedaws"
