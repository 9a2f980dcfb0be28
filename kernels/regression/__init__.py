"""Exact Bayesian linear regression."""
