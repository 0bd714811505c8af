"""The finished image: a base with our files laid over it, its names, and what it says of itself."""
