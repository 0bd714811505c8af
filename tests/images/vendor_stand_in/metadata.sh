#!/bin/sh
# metadata.sh SITE NAME VERSION: the metadata of an installed distribution, without a RECORD.
set -eu
folder="$1/$(echo "$2" | tr - _)-$3.dist-info"
mkdir -p "$folder"
printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$2" "$3" >"$folder/METADATA"
echo vendor >"$folder/INSTALLER"
