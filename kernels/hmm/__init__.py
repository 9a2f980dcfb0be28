"""Exact filtering of hidden Markov models."""
