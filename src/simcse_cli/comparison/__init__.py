"""Runs, result files and published rows side by side: scores, differences, spread, what changed."""
