"""Drawing of results: computed tables in, text or files out. Only this package and commands/ know typer and rich."""
