"""The HTTP side of the service: it lets in, refuses, translates and counts; the engine decides."""
