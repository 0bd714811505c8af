"""The programs that run inside a finished image or prefix: standard library only, JSON on stdout, no judgement.

They travel as one zip file (`build.gates.bundle`) and run under the image's own Python (3.11 or later), so nothing here
may import anything of ours outside this package. What the facts mean is decided in `build.gates.judge`, on this side.
"""
