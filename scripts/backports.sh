#!/bin/sh
# Install packages of Debian 12's backports, which need not be among the sources of this machine. Needs root.
set -eu
export DEBIAN_FRONTEND=noninteractive
echo "installing $* from backports ..." >&2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] http://deb.debian.org/debian bookworm-backports main" >"$work/sources.list"
apt() {
    apt-get -q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$work/lists" -o APT::Sandbox::User=root "$@" >"$work/log" 2>&1 </dev/null
}
cd "$work"
if apt update && apt download "$@" && apt-get install -y -q ./*.deb >"$work/log" 2>&1 </dev/null; then
    exit 0
fi
cat "$work/log" >&2
echo "they cannot be had: tests of what needs them are skipped" >&2
