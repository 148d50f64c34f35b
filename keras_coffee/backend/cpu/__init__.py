"""Kernels in C for a CPU, for all frameworks: see compiler.py and the C files."""
