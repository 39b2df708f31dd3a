"""Traces for other programs: Nsight Systems, Perfetto, Chrome; and traces fit to be shared."""
