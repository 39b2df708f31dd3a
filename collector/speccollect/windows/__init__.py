"""The kernel tier: cycles that a profiler looks at, and what it saw as rows."""
