"""Training: config, loop, checkpoints and run folder; it knows a task only by its protocol."""

from diffwindow.extras import require

require("matplotlib", "rich", "tensorboard", "yaml")
