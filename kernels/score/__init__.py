"""Scores of predicted distributions against the exact predictive, and the cross-entropies models train on."""
