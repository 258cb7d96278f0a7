"""Translation, classification and language modelling: from a batch to a loss, from a model to its metrics.

`registry.task_of(store, config, options)` makes the task of a store; `registry.model_config(store, settings)`
makes its model config from `settings` and what the store decides (`vocab_size` and `num_classes`).
"""

from diffwindow.extras import require

require("sacrebleu")
