"""The kernel tier through torch.profiler's engine: started without its Python layer, read without its JSON."""
