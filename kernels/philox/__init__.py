"""Counter-based random numbers: the same bits on every back end."""
