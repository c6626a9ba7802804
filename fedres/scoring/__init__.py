"""From JSON features to scores, and the learning step.

``flattening.py`` defines features, ``features.py`` hashes whole requests;
``model.py`` has the weights, ``scores.py`` and ``kernels.py`` the compiled sums and steps.
"""
