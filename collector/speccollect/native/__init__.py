"""Compiled helpers of the collector; each has a Python form of equal answers."""
