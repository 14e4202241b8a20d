"""Metric depth for ROS 2, from images and a few measured points."""
