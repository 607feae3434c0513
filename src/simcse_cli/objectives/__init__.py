"""Training objectives: one class per method, listed in ``registry``."""
