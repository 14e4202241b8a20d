"""What `recover` uses when nothing else is said; here, because reading it must cost no import."""

MDE_NAME = "lite"
METHOD_NAME = "field"
