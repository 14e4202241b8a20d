"""Pseudo-labels at scale: many images with anchors in, aligned depth and a verdict on each out."""
