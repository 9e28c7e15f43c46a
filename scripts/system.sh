#!/bin/sh
# The compilers, emulators and headers that the tests use. As root on Debian, install what is
# missing; otherwise say what will be skipped. Prints the names of what is still missing.
set -eu
cd "$(dirname "$0")/.."

# package, what it serves, and a program or file that shows it is there
wanted() {
    cat <<'TABLE'
gcc             the tests with gcc                      gcc
libc6-dev       the tests with gcc                      /usr/include/stdio.h
binutils        the tests that read disassembly         objdump
clang           the tests with clang                    clang
qemu-user       what this CPU cannot run itself         qemu-x86_64
cmake           libraries built by CMake                cmake
meson           libraries built by meson                meson
ninja-build     libraries built by meson                ninja
pkg-config      libraries found by pkg-config           pkg-config
libsimde-dev    AVX-512 on CPUs without it              /usr/include/simde/x86/avx512.h
TABLE
    [ "$(uname -m)" = aarch64 ] || cat <<'TABLE'
gcc-aarch64-linux-gnu       neon                        aarch64-linux-gnu-gcc
binutils-aarch64-linux-gnu  the neon disassembly        aarch64-linux-gnu-objdump
libc6-dev-arm64-cross       neon                        /usr/aarch64-linux-gnu/include/stdio.h
TABLE
}

present() {
    case $1 in
    /*) [ -e "$1" ] ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

missing() {
    wanted | while read -r line; do
        present "${line##* }" || echo "$line"
    done
    .venv/bin/python -c 'import pathlib, sys, sysconfig
header = pathlib.Path(sysconfig.get_path("include"), "Python.h")
sys.exit(not header.exists())' || echo "python3-dev     the fast call path      Python.h"
}

lacking=$(missing)
if [ -n "$lacking" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2046  # one word per package
    sh scripts/apt.sh $(echo "$lacking" | cut -d' ' -f1)
    lacking=$(missing)
fi
if [ -n "$lacking" ]; then
    echo "not on this machine; tests that need them are skipped:" >&2
    echo "$lacking" | sed 's/^\([^ ]*\) *\(.*[^ ]\)  *[^ ]*$/  \1: \2/' >&2
    echo "  try, as root: apt-get install $(echo "$lacking" | cut -d' ' -f1 | tr '\n' ' ')" >&2
    echo "$lacking" | cut -d' ' -f1
fi
