"""One trace of all ranks' files: merged, counted, and looked at for the first time."""
