"""Compiled helpers: optional, compiled once with the machine's own C compiler, never needed for an answer."""
