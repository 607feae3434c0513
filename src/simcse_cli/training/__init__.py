"""From settings to a trained model in a run folder."""
