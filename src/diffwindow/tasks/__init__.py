"""Translation, classification and language modelling: from a batch to a loss, from a model to its metrics.

`make_task(store, model, options)` is the one door for the layers above: `model` holds the fields of the
model config that the store does not decide (all but `vocab_size` and `num_classes`), `attention` among them.
"""
