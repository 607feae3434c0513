"""Encoders: sources, records, poolers, heads, loading and saving."""
