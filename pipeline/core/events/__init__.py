"""Messages and the events that they contain: the wire format, what makes an event valid, reasons, dead letters."""
