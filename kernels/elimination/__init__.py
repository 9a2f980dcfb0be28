"""Exact posteriors by elimination: bijections and stored pairs."""
