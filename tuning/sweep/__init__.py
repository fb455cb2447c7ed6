"""A sweep as a whole: plan, trials, final runs, report."""
