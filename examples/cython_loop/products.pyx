# cython: language_level=3, boundscheck=False, wraparound=False
"""A loop over products that calls a kernel by its address."""

from libc.stdint cimport uintptr_t

# As kernel.c_declaration says it: of fixed sizes, without scratch memory.
ctypedef void (*gemm_t)(const float *a, const float *b, float *c) noexcept nogil


def products(
    uintptr_t address, const float[:, :, ::1] a, const float[:, :, ::1] b, float[:, :, ::1] c
):
    """c[i] = a[i] @ b[i] for each i, without the interpreter's lock; nothing is checked."""
    cdef gemm_t gemm = <gemm_t>address
    cdef Py_ssize_t i
    with nogil:
        for i in range(a.shape[0]):
            gemm(&a[i, 0, 0], &b[i, 0, 0], &c[i, 0, 0])
