"""Training: settings, the loop, checkpoints and the run folder; of a task it knows the protocol alone."""
