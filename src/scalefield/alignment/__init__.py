"""What the classic alignment methods share."""
