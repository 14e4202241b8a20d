"""Default names and limits of `recover`, in a module that imports nothing."""

VERSION = "0.1.0"
"""Version of the package, the same as in pyproject.toml."""
MDE_NAME = "lite"
"""Name of the default estimator."""
METHOD_NAME = "field"
"""Name of the default method."""
MIN_SUPPORT = 0.2
"""Support below which depth at a pixel is an extrapolation."""
