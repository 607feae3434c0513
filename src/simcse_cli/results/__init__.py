"""Results, tables, figures and run folders, shared by all commands."""
