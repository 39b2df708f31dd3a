"""What a rank does of itself: who it is, when it records, in step with whom, and its writer thread."""
