"""Arrow and numpy kernels: rows of columns of any type, without a loop over rows in Python."""
