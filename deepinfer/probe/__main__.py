"""`python -m deepinfer.probe`: the same as `deepinfer probe`, for environments without the command."""

import sys

from deepinfer.cli import main

if __name__ == "__main__":
    sys.exit(main(["probe", *sys.argv[1:]]))
