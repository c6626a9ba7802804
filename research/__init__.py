"""The papers' figures, FedRes beside its peers, and speed: studies that are part of the source, not of the package."""
