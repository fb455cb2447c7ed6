"""Write tuning/suite_shapes.csv: what the clients of the suite's settings know, for ``anchorfl recommend``.

ANCHORFL_DATA=data python -m benchmarks.suite_shapes            # reads every data set of the suite; ten seconds
"""

from __future__ import annotations

import argparse

from anchorfl.pipeline.config.presets import read_preset, shipped
from anchorfl.pipeline.storage.atomic_files import write_atomically
from anchorfl.tuning.tables.recommend import SHAPES, SUITE, Shape, shape_of_experiment, shapes_text


def shape_of_setting(federation: str) -> Shape:
    """Return the shape of a setting, by the seed of its presets."""
    return shape_of_experiment(read_preset(f"{federation}/anchor"))


def main() -> None:
    """Write the file."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    shapes = {federation: shape_of_setting(federation) for federation in shipped().papers[SUITE].data.values()}
    write_atomically(SHAPES, shapes_text(shapes).encode())


if __name__ == "__main__":
    main()
