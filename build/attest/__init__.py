"""What goes with a finished image so that others need not take our word: its contents (SBOM), how it came to be
(provenance), and the program that recomputes both."""
