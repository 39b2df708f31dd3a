"""The closed files that a recording leaves behind, until one trace is made of them."""
