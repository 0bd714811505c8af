"""`python -m deepinfer.probe`: the same as `deepinfer probe`."""

import argparse
import sys

from deepinfer.cli import probe

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m deepinfer.probe", description=probe.HELP)
    probe.add_arguments(parser)
    sys.exit(probe.run(parser.parse_args()))
