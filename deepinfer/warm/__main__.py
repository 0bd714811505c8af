"""`python -m deepinfer.warm`: the same as `deepinfer warm`, for environments without the command."""

import sys

from deepinfer.cli import main

if __name__ == "__main__":
    sys.exit(main(["warm", *sys.argv[1:]]))
