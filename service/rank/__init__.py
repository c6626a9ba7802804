"""One decision: requests, the ranker, how it decides, slots, explanations."""
