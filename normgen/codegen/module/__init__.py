"""The text of the Python module that holds a compiled norm."""
