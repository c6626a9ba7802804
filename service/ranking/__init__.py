"""Rankers: requests in, decisions out."""
