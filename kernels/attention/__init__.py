"""Scaled dot-product attention that hands out the terms of its own gradient; one implementation a file."""
