"""What commands find: results, tables, figures and run folders."""
