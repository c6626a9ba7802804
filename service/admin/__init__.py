"""Loops, settings, catalogue, users, exports and status: what an admin sees and changes."""
