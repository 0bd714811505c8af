"""Which GPUs does torch see here? Fails where there is no Hopper GPU."""

import json
import sys


def main() -> int:
    """Print the devices and the versions that matter to the other programs."""
    figures: dict[str, object] = {"count": 0}
    reason = ""
    try:
        import torch

        figures |= {"torch": str(torch.__version__), "cuda": torch.version.cuda}
        properties = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        hopper = [found for found in properties if (found.major, found.minor) == (9, 0)]
        figures |= {
            "count": len(hopper),
            "names": sorted({found.name for found in properties}),
            "multiprocessors": sorted({found.multi_processor_count for found in hopper}),
        }
        if not hopper:
            others = ", ".join(f"{found.name} (sm_{found.major}{found.minor})" for found in properties)
            reason = f"no Hopper GPU (there is {others})" if others else "torch sees no GPU"
    except Exception as problem:
        reason = f"torch cannot ask for GPUs: {type(problem).__name__}: {problem}"
    print(json.dumps({"ok": not reason, "reason": reason, "figures": figures}))
    return 0 if not reason else 5


if __name__ == "__main__":
    sys.exit(main())
