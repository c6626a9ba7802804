"""Models that decide: means and widths of the rewards of actions, learned from one event after the other."""
