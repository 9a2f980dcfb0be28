"""Short causal depthwise convolution with an optional SiLU."""
