"""The GPU stage of `check --gpus N`: what can only be known on a Hopper GPU, run inside the image or the host prefix.

`stage.run_stage` starts the programs of `programs/` through a launcher and turns what they print into rows. Programs
are handed to the other side's Python as text (`shipping`), so that nothing has to be copied there.
"""

from build.gpu.stage import Ended, Launch, StageResult, as_table, run_stage

__all__ = ["Ended", "Launch", "StageResult", "as_table", "run_stage"]
