"""The node map: which module added each node of a CUDA graph, and which graph a replay ran."""
