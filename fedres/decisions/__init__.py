"""Models for decisions: means and standard deviations of the rewards of actions, learned online."""
