"""Translation, classification and language modelling: from a batch to a loss, from a model to its metrics."""
