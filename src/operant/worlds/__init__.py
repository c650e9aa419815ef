"""Chapter 5: learned models, and planning in them."""
