"""The folder through which commands and ranks talk: the control word, and what each rank says of itself."""
