"""One attention head with readout and cross-entropy: the whole training step, and a trainer for many seeds."""
