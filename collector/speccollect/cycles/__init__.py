"""Cycles, phases and requests of an armed rank: stamped by the host, kept in lists, turned into rows."""
