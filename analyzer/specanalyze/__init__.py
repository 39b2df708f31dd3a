"""Reads event traces of speculative decoding and says where the time went. Never imports torch."""
