"""What ran: hardware, software and settings, without what must not be recorded."""
