"""A vendor's start-up code, in every Python of the image; it even prints."""

import sys

sys.vendor_start_up = "sitecustomize"  # type: ignore[attr-defined]
print("Welcome to the vendor's image.")
