"""Compare runs, result files and published rows: scores, differences, tests and changes."""
