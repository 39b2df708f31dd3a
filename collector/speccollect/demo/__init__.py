"""An embedded speculative engine: small, but every part real. It holds no instrumentation; see engines/embedded.py."""
