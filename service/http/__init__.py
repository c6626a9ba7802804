"""The HTTP side of the service: authentication, limits, decoding, metrics. It makes no decisions."""
