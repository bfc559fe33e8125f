"""The unified radix cache for JAX."""
