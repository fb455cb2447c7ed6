"""Parts of ``anchorfl diagnose``: what is measured of a run after its training."""
