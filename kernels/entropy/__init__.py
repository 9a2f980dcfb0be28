"""Entropy of a distribution, in bits."""
