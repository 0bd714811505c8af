"""Continuous integration: which jobs build the images, on which runners, and the workflow file that runs them."""
