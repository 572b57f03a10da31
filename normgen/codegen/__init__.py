"""From a program to CUDA text: what each kernel does (`plan`), how it reads (`emit`), and the package of both
directions.
"""
