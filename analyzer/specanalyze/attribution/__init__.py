"""What gives each nanosecond of a rank its phase and bucket, and each collective its wait and transfer."""
