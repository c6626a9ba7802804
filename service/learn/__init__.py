"""The learner: a function of the log, and a loop around it."""
