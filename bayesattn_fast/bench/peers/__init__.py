"""The other implementations that ours are measured beside: each a plain function, or the reason it is missing."""
