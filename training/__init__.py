"""Training of the bundled reader. Not part of the package."""
