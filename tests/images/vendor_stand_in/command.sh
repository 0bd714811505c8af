#!/bin/sh
# command.sh PYTHON FILE: the command `vllm` as an installer writes it.
set -eu
mkdir -p "$(dirname "$2")"
printf '#!%s\nfrom vllm.command import main\nmain()\n' "$1" >"$2"
chmod 755 "$2"
