"""Models in shared memory: the learner publishes, rankers read."""
