"""The loader that MLflow models logged by version 0.1 name; newer ones name ``anchorfl.pipeline.mlmodel``.

No ``__init__.py`` beside it: another package called ``pipeline`` may be installed, and this file then lies in it.
"""

from anchorfl.pipeline.mlmodel import _load_pyfunc as _load_pyfunc
