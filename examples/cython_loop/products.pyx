# cython: language_level=3, boundscheck=False, wraparound=False
"""Loops that call kernels by their addresses."""

from libc.stdint cimport uint8_t, uintptr_t

# As kernel.c_declaration says it: of fixed sizes, without scratch memory.
ctypedef void (*gemm_t)(const float *a, const float *b, float *c) noexcept nogil
# A packed B is its bytes, the array packed.data.
ctypedef void (*layer_t)(const float *a, const uint8_t *b, float *c) noexcept nogil


def products(
    uintptr_t address, const float[:, :, ::1] a, const float[:, :, ::1] b, float[:, :, ::1] c
):
    """c[i] = a[i] @ b[i] for each i, without the interpreter's lock; nothing is checked."""
    cdef gemm_t gemm = <gemm_t>address
    cdef Py_ssize_t i
    with nogil:
        for i in range(a.shape[0]):
            gemm(&a[i, 0, 0], &b[i, 0, 0], &c[i, 0, 0])


def layer(uintptr_t address, const float[:, ::1] a, const uint8_t[::1] b, float[:, ::1] c):
    """c[i] = a[i] @ b for each row, by a kernel of one row and a B that pack_b made for it."""
    cdef layer_t row = <layer_t>address
    cdef Py_ssize_t i
    with nogil:
        for i in range(a.shape[0]):
            row(&a[i, 0], &b[0], &c[i, 0])
