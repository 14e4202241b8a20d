"""Training: `mde` makes the shipped estimator, `basis` the generators; they share `loop`."""
