"""Default names of `recover`, in a module that imports nothing."""

MDE_NAME = "lite"
METHOD_NAME = "field"
