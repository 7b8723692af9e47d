#!/usr/bin/env bash
# debian.sh NAME PACKAGE…: a minimal Debian bookworm tree with these packages at $CACHE/debian/NAME; kept, whole or not there at all.
# bookworm on purpose: its systemd (252) still runs on cgroup v1.
. "$(dirname "$0")/env.sh"
exclusive debian "$0" "$@"

name=$1
shift
packages=$(IFS=,; echo "$*")
tree=$CACHE/debian/$name
! fresh_folder "$tree" "$tree.packages" "$packages" || exit 0

need_root "debootstrap"
need_commands debootstrap=debootstrap
begin_folder "$tree" "$tree.packages"
mkdir -p "$CACHE/debian/packages"
logged "debootstrap of $name" "debootstrap-$name.log" \
  debootstrap --variant=minbase --cache-dir="$CACHE/debian/packages" --include="$packages" bookworm "$tree.part"
rm -rf "$tree.part"/var/cache/apt/* "$tree.part"/var/lib/apt/lists/* "$tree.part"/var/log/* "$tree.part"/usr/share/{doc,man,locale}
finish_folder "$tree" "$tree.packages" "$packages"
