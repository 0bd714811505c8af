#!/bin/sh
# Runs the probe with the Python that has torch: the one on PATH first, then the usual places; without torch anywhere,
# with the first Python that runs. Status 3: there is no Python.
probe="$1"
first=""
# A glob's * leaves out names that begin with a dot, as .venv does.
for python in python3 python /*/bin/python3 /*/.venv/bin/python3 /opt/*/bin/python3 /opt/*/.venv/bin/python3 \
    /opt/*/envs/*/bin/python3 /usr/local/bin/python3 /usr/local/*/bin/python3 /root/*/bin/python3 \
    /home/*/*/bin/python3 /home/*/.venv/bin/python3 /root/.local/share/uv/python/*/bin/python3 \
    /workspace/*/bin/python3 /workspace/*/.venv/bin/python3; do
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1 || continue
  [ -n "$first" ] || first="$python"
  if "$python" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' >/dev/null 2>&1; then
    exec "$python" "$probe"
  fi
done
[ -n "$first" ] || exit 3
exec "$first" "$probe"
