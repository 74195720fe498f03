"""What messages and events contain: the wire format, valid events, reasons of refusal, dead letters."""
