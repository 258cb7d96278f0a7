"""Training: settings, the loop, checkpoints and the run folder; of a task it knows the protocol alone."""

from diffwindow.extras import require

require("matplotlib", "rich", "tensorboard", "yaml")
