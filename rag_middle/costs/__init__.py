"""What methods cost on a GPU, predicted without one."""
