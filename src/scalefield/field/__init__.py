"""The log-scale field as a Gaussian process with a learned, image-adaptive kernel."""
