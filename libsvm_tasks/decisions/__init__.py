"""How well models decide: streams of decisions, and who plays on them."""
