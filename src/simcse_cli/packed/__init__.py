"""Transformer encoders on packed tokens, without padding, for inference and training."""
