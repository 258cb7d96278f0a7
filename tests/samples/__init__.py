"""Models, tasks and configurations that several tests share."""
