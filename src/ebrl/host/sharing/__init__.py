"""Ways to share one device, or one set of CPUs, between generation and training: seven back-ends, one protocol."""
