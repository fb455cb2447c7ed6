"""Parts of ``anchorfl diagnose``: measures of a run after its training."""
