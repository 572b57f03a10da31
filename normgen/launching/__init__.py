"""From a kernel and a call to a launch: what every family of kernels needs for that, whichever it is."""
