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
clang-19        rvv, which older compilers do not know  clang-19
llvm-19         the cycles of K loops, by a model       llvm-mca-19
qemu-user       what this CPU cannot run itself         qemu-x86_64
cmake           libraries built by CMake                cmake
meson           libraries built by meson                meson
ninja-build     libraries built by meson                ninja
pkg-config      libraries found by pkg-config           pkg-config
libsimde-dev    AVX-512 on CPUs without it              /usr/include/simde/x86/avx512.h
chromium        the site as a browser shows it          chromium
TABLE
    [ "$(uname -m)" = aarch64 ] || cat <<'TABLE'
gcc-aarch64-linux-gnu       neon, sve                   aarch64-linux-gnu-gcc
binutils-aarch64-linux-gnu  the disassembly of both     aarch64-linux-gnu-objdump
libc6-dev-arm64-cross       neon, sve                   /usr/aarch64-linux-gnu/include/stdio.h
TABLE
    [ "$(uname -m)" = ppc64le ] || cat <<'TABLE'
gcc-powerpc64le-linux-gnu       power10                 powerpc64le-linux-gnu-gcc
binutils-powerpc64le-linux-gnu  its disassembly         powerpc64le-linux-gnu-objdump
libc6-dev-ppc64el-cross         power10                 /usr/powerpc64le-linux-gnu/include/stdio.h
TABLE
    [ "$(uname -m)" = riscv64 ] || cat <<'TABLE'
gcc-riscv64-linux-gnu       linking for rvv             riscv64-linux-gnu-gcc
binutils-riscv64-linux-gnu  its disassembly             riscv64-linux-gnu-objdump
libc6-dev-riscv64-cross     rvv                         /usr/riscv64-linux-gnu/include/stdio.h
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

# Debian 12's qemu knows neither all of RISC-V's extensions nor SME's integers rightly.
old_qemu() {
    version=$(qemu-riscv64 --version 2>/dev/null | sed -n 's/^qemu-riscv64 version \([0-9]*\).*/\1/p')
    [ -n "$version" ] && [ "$version" -lt 10 ]
}

lacking=$(missing)
if [ -n "$lacking" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # shellcheck disable=SC2046  # one word per package
    sh scripts/apt.sh $(echo "$lacking" | cut -d' ' -f1)
    lacking=$(missing)
fi
if old_qemu && [ "$(id -u)" = 0 ] && grep -q '^VERSION_CODENAME=bookworm' /etc/os-release; then
    sh scripts/backports.sh qemu-user
fi
old_qemu && lacking="$lacking
qemu-user       10.0 or later, for rvv with zvfh and zvfbfwma   qemu-riscv64"
if [ -n "$lacking" ]; then
    echo "not on this machine; tests that need them are skipped:" >&2
    echo "$lacking" | sed 's/^\([^ ]*\) *\(.*[^ ]\)  *[^ ]*$/  \1: \2/' >&2
    echo "  try, as root: apt-get install $(echo "$lacking" | cut -d' ' -f1 | tr '\n' ' ')" >&2
    echo "$lacking" | cut -d' ' -f1
fi
