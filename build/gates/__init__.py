"""Gates: checks on a finished image or prefix, made from inside it, without a GPU or a network.

catalogue: their names and what each promises.  programs: what runs inside.  judge: what the facts mean.
launcher: where programs run (a container, or this machine).  run: one call for all of them.
"""
