"""The families of kernels: `compile` plans and writes texts, `launch` chooses schedules and launches them."""
