"""The command line. Nothing but ``__main__`` imports this package, and no server does: here alone typer and rich are used."""
