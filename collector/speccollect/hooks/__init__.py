"""Wrappers around a server's methods: how they get there and off again, and what they may do."""
