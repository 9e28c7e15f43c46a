"""List the headers of systems and compilers: no file of a library may have such a name."""

from __future__ import annotations

_C = """
assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign
stdarg stdatomic stdbit stdbool stdckdint stddef stdint stdio stdlib stdmchar stdnoreturn string
tgmath threads time uchar wchar wctype
"""
_POSIX = """
aio cpio dirent dlfcn fcntl fmtmsg fnmatch ftw getopt glob grp iconv langinfo libgen libintl mqueue
monetary ndbm netdb nl_types poll pthread pwd regex sched search semaphore spawn strings stropts
syslog tar termios trace ulimit unistd utime utmpx wordexp
"""
_SYSTEMS = """
alloca argp argz ar byteswap dispatch elf endian err error execinfo fcntl features fts ifaddrs link
malloc memory mntent obstack paths printf pty resolv sgtty shadow stab syscall sysexits thread_db
ttyent ucontext utmp values windows
"""
_COMPILERS = """
altivec arm_acle arm_bf16 arm_cde arm_fp16 arm_mve arm_neon arm_sme arm_sve cpuid gcov mm3dnow
mm_malloc omp openacc quadmath riscv_vector unwind vecintrin varargs
"""
#: Names of headers without ".h". Headers of x86 intrinsics are left out: all end in "intrin".
HEADERS = frozenset(f"{_C}{_POSIX}{_SYSTEMS}{_COMPILERS}".split())
