"""Cameras, image orientation, point clouds and COLMAP models."""
