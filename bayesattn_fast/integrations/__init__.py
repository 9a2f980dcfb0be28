"""Other packages' models on this package's kernels."""
