"""From JSON features to scores, and the learning step: ``features.py`` hashes, ``model.py`` has the weights."""
