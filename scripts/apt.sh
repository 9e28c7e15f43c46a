#!/bin/sh
# Install Debian packages without a question asked. Needs root.
set -eu
export DEBIAN_FRONTEND=noninteractive
echo "installing $* ..." >&2
log=$(mktemp)
install() { apt-get install -y -q --no-install-recommends "$@" >"$log" 2>&1 </dev/null; }
if ! install "$@"; then # the lists may be missing or old
    apt-get update -q >"$log" 2>&1 </dev/null && install "$@" || {
        cat "$log" >&2
        rm -f "$log"
        exit 1
    }
fi
rm -f "$log"
