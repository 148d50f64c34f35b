"""Kernels for a CPU, in C, for whichever framework: see compiler.py and the C files."""
