"""Loss functions: tensors in, one scalar out; no models, no settings."""
