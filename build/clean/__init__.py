"""`clean`: removes what the project made, in Docker and on the disk, and nothing else."""
