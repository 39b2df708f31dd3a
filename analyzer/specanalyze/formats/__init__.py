"""Files to events and back: torch.profiler's JSON, Nsight Systems' exports, trace.parquet, folders of them."""
