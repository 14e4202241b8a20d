"""Views of one scene with known poses, recovered in one scale."""
