"""What gpu_check.py times."""
