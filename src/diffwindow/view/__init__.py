"""Pictures of windows and attention: arrays in, figures out."""
