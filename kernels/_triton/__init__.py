"""What the Triton kernels of every op share: tensor views, launching, the online softmax, compiling without a GPU."""
