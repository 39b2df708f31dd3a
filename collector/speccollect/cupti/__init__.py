"""The kernel tier through NVIDIA's cupti-python: each activity with its graph and node."""
