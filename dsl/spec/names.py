"""Names that users choose: of dims, operands, outputs and kernels.

A dim's name occurs in messages. The name of an operand or output is a keyword of the call in
Python. In C the parameter has that name with "_" appended; no other identifier ends in "_". The
name of a kernel is the name of its C function.
"""

from __future__ import annotations

import keyword
import re

from tilewright.errors import SpecError


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
#: The keywords of C11, then the keywords of C++20 that C lacks.
_WORDS = _listed(
    """
    auto break case char const continue default do double else enum float extern for goto if int
    inline long register restrict return short signed sizeof struct static switch typedef union
    unsigned void volatile while
    alignas alignof and and_eq asm bitand bitor bool catch char8_t char16_t char32_t class co_await
    co_return co_yield compl concept consteval constexpr constinit const_cast decltype delete
    dynamic_cast explicit export false friend mutable namespace new noexcept not not_eq nullptr
    operator or or_eq private protected public reinterpret_cast requires static_assert static_cast
    template this thread_local throw true try typeid typename typeof typeof_unqual using virtual
    wchar_t xor xor_eq
    """
)
#: Beginning of the identifiers that C reserves in every scope.
_RESERVED = re.compile(r"_[A-Z_]")
#: Types, macros and functions that C's library and POSIX declare or reserve (C11 7.1.3 and 7.31).
#: The pattern is compiled when it is first used: loading a cached kernel does not need it.
_LIBRARY = r"""_.* | \w+_t | E[0-9A-Z]\w*
    | (SIG|LC_|FE_|PRI|SCN|ATOMIC_|PTHREAD_|SCHED_|CLOCK_|SA_)\w*
    | U?INT\w*_(MAX|MIN|WIDTH|C) | [A-Z]+_(MAX|MIN|WIDTH|BIT|DIG|EPSILON)
    | (str|mem|wcs|is|to)[a-z0-9]* | (atomic|pthread|sched|sem|sig|clock|pool)_\w*
    | MULADD\w* | TILE_LOAD | SEEN_BY_TILES
    | (KEEP_\d|HIDE|BARRIER|NULL|EOF|BUFSIZ|RAND_MAX|NAN|INFINITY|HUGE_VAL[FL]?)
    | (tilewright|tw|tiles|tile)_\w* | v[a-z0-9]+_(lane_|n_)?[bfsup]\d+\w*
    | tiles | linux | unix | main | environ | errno
    """
#: Functions of C and POSIX that compilers know, in the order of their headers. ``_MATHEMATICS`` is
#: a separate list, because its functions also exist with the suffixes "f" and "l".
_FUNCTIONS = _listed(
    """
    assert setjmp longjmp signal raise va_start va_arg va_copy va_end offsetof
    remove rename tmpfile tmpnam fclose fflush fopen freopen setbuf setvbuf fprintf fscanf printf
    scanf snprintf sprintf sscanf vfprintf vfscanf vprintf vscanf vsnprintf vsprintf vsscanf fgetc
    fgets fputc fputs getc getchar putc putchar puts ungetc fread fwrite fgetpos fseek fsetpos
    ftell rewind clearerr feof ferror perror stdin stdout stderr
    atof atoi atol atoll rand srand aligned_alloc calloc free malloc realloc abort atexit
    at_quick_exit exit getenv quick_exit system bsearch qsort abs labs llabs div ldiv lldiv mblen
    mbtowc wctomb mbstowcs wcstombs clock difftime mktime time asctime ctime gmtime localtime
    access alarm brk chdir chown close confstr crypt daemon dup dup2 execl execle execlp execv
    execve execvp fork fsync getopt getpid index kill link lseek nanosleep nice open pause pipe
    read rindex sbrk select sleep sync syscall truncate ttyname unlink usleep vfork wait write
    alloca bcmp bcopy bzero dcgettext dgettext gettext ffs ffsl ffsll fputs_unlocked
    fprintf_unlocked printf_unlocked putchar_unlocked puts_unlocked stpcpy stpncpy cabs carg cimag
    conj cproj creal cpow cexp clog csqrt csin ccos ctan casin cacos catan csinh ccosh ctanh
    casinh cacosh catanh
    """
)
_MATHEMATICS = _listed(
    """
    acos asin atan atan2 cos sin tan acosh asinh atanh cosh sinh tanh exp exp2 expm1 frexp ilogb
    ldexp log log10 log1p log2 logb modf scalbn scalbln cbrt fabs hypot pow sqrt erf erfc lgamma
    tgamma ceil floor nearbyint rint lrint llrint round lround llround trunc fmod remainder remquo
    copysign nan nextafter nexttoward fdim fmax fmin fma fpclassify signbit drem exp10 finite gamma
    infnan pow10 powi scalb significand sincos j0 j1 jn y0 y1 yn lgamma_r gamma_r
    """
)


def check_identifier(name: object, what: str) -> str:
    """Return ``name`` if it is an identifier in C and in Python, else raise SpecError."""
    if not isinstance(name, str) or not _IDENTIFIER.match(name) or keyword.iskeyword(name):
        raise SpecError(
            f"the name of {what} must be a C identifier",
            got=name,
            expected="letters, digits and underscores, no digit first, and no word of Python",
        )
    return name


def check_name(name: object, what: str) -> str:
    """Return ``name`` if an operand, an output or a kernel can have it, else raise SpecError.

    It must be an identifier, no keyword of C, C++ or Python, and not reserved for C compilers.
    """
    found = check_identifier(name, what)
    if found in _WORDS:
        raise SpecError(
            f"the name of {what} is a word of C or C++", got=found, hint=f"{found}_ or x_{found}"
        )
    if _RESERVED.match(found):
        raise SpecError(
            f"the name of {what} is reserved by C",
            got=found,
            expected="no underscore before a capital or another underscore at the beginning",
        )
    return found


def check_function_name(name: object, what: str = "a kernel") -> str:
    """Return ``name`` if a C function may have it, alone or as a prefix; else raise SpecError."""
    found = check_name(name, what)
    base = found[:-1] if found[-1:] in ("f", "l") else found
    known = found in _FUNCTIONS or not _MATHEMATICS.isdisjoint((found, base))
    if known or re.fullmatch(_LIBRARY, found, re.VERBOSE):
        raise SpecError(
            f"{what} cannot be called {found}: it is declared by the headers or by the text of "
            "generated C, or reserved for them",
            got=found,
            hint=f"gemm_{found.lstrip('_')}",
        )
    return found
