"""Which methods of each engine carry which phase."""
