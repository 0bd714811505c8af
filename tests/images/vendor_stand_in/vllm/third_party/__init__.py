"""What the vendor brings along."""
