"""How a compiled norm is called: `norm` is the door, and all that a generated module imports."""
