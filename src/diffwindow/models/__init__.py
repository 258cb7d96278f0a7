"""The models of the paper's experiments, built from one set of layers and a plan from the notation."""
