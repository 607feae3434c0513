"""Training: from settings to a model in a run folder."""
