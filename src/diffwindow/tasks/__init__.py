"""Translation, classification and language modelling: from a batch to a loss, from a model to its metrics.

`entries.TASKS` has what differs between them; `task.task_of(store, config, options)` makes the task of a
store, `task.model_config(store, settings)` the config of its model.
"""

from diffwindow.extras import require

require("sacrebleu")
