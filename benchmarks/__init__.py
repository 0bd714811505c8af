"""Programs that measure: `python -m benchmarks.NAME`, from the project's root."""

from deepinfer import interrupts

interrupts.install_for("benchmarks")  # before torch is imported
